// Conversations as trees of turns. A turn that is edited, retried or continued is a sibling of the old one, and the
// conversation is the path from the root to `leaf`.
//
// Several pages may hold one conversation. A turn is written by the page that made it, until it has ended, and never
// changes afterwards, so what two pages know of a conversation can always be put together: see merge.

export const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// begun: when, for the order of the list. changed: when the title or `kept` (on the server) was last set.
export function newConversation() {
  return { id: newId(), title: "", begun: Date.now(), changed: 0, kept: false, turns: {}, leaf: null };
}

// Add a turn below another (null: the first of the conversation) and make it the end of the conversation. Its id is the
// time with three random digits: larger than those before it, and another one than a second page would take.
export function addTurn(conversation, parent, role, content) {
  const chance = Math.floor(1000 * Math.random()), ids = Object.keys(conversation.turns).map(Number);
  const id = Math.max(1000 * Date.now(), ...ids.map((each) => each + 1)) + chance;
  const turn = { id, parent, role, content };
  conversation.turns[id] = turn;
  conversation.leaf = id;
  if (!conversation.title && role === "user") rename(conversation, content);
  return turn;
}

export function rename(conversation, text) {
  const words = [...text.slice(0, 500).trim().replace(/\s+/g, " ")];
  Object.assign(conversation, { title: words.length > 80 ? `${words.slice(0, 79).join("")}…` : words.join(""), changed: Date.now() });
}

export function path(conversation, end = conversation.leaf) {
  const turns = [];
  for (let id = end; id !== null; id = conversation.turns[id].parent) turns.push(conversation.turns[id]);
  return turns.reverse();
}

const inOrder = (turns) => turns.sort((one, other) => one.id - other.id);
const below = (conversation, parent) => inOrder(Object.values(conversation.turns).filter((turn) => turn.parent === parent));
export const siblings = (conversation, turn) => below(conversation, turn.parent);

// Go to a sibling: the conversation ends with the latest turn below it.
export function goTo(conversation, turn) {
  let end = turn;
  for (let turns; (turns = below(conversation, end.id)).length;) end = turns.at(-1);
  conversation.leaf = end.id;
}

// A conversation of its own that begins with the turns up to this one.
export function fork(conversation, turn) {
  const made = newConversation(), ids = new Map();
  for (const old of path(conversation, turn.id)) {
    const { id, parent, role, content, isRunning, ...rest } = structuredClone(old);
    const copy = Object.assign(addTurn(made, made.leaf, role, content), rest);
    ids.set(id, copy.id);
    if (copy.since) copy.since = ids.get(copy.since);
  }
  rename(made, `Fork of ${conversation.title}`);
  return made;
}

// ---- what the model reads

// The turns that it reads before what follows `end`. Where an answer has `since`, turns before that one are left out.
export function read(conversation, end) {
  const turns = end === null ? [] : path(conversation, end), since = turns.findLast((turn) => turn.since)?.since;
  return since ? turns.slice(turns.findIndex((turn) => turn.id === since)) : turns;
}

const asCall = ({ id, name, arguments: given }) => ({ id, type: "function", function: { name, arguments: given } });

export function messages(turns, system) {
  const said = turns.map(({ role, content, thinking, calls }) => ({ role, content, ...(thinking && { reasoning_content: thinking }), ...(calls && { tool_calls: calls.map(asCall) }) }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}

// ---- what two pages know of one conversation

export const hasEnded = (turn) => turn.role === "user" || Boolean(turn.finish || turn.error);
const lengthOf = ({ content, thinking = "", calls = [] }) => content.length + thinking.length + JSON.stringify(calls).length;
const isNewer = (one, other) => (hasEnded(one) === hasEnded(other) ? lengthOf(one) > lengthOf(other) : hasEnded(one));

// Take into one conversation what another copy has more. Returns whether that copy lacks something. Each page goes on
// showing its own path, unless the other one has only added to its end.
export function merge(mine, theirs) {
  const isMore = (turn, than) => !than.turns[turn.id] || isNewer(turn, than.turns[turn.id]);
  for (const turn of Object.values(theirs.turns)) {
    if (isMore(turn, mine)) mine.turns[turn.id] = Object.assign(mine.turns[turn.id] ?? {}, turn);
  }
  const isAhead = mine.changed > theirs.changed || Object.values(mine.turns).some((turn) => isMore(turn, theirs));
  if (theirs.changed > mine.changed) Object.assign(mine, { title: theirs.title, kept: theirs.kept, changed: theirs.changed });
  if (mine.leaf === null || path(mine, theirs.leaf).some(({ id }) => id === mine.leaf)) mine.leaf = theirs.leaf;
  return isAhead;
}

// Whether two copies say different things in a turn: then they are different conversations that have the same id.
export function contradict(one, other) {
  const differ = (turn, its) => turn.parent !== its.parent || turn.role !== its.role ||
    (hasEnded(turn) && hasEnded(its) ? turn.content !== its.content : !(turn.content.startsWith(its.content) || its.content.startsWith(turn.content)));
  return Object.values(one.turns).some((turn) => other.turns[turn.id] && differ(turn, other.turns[turn.id]));
}
