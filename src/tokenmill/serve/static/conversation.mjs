// Conversations as trees of turns. An edited or retried turn is a sibling of the old one, and the conversation is the
// path from the root to `leaf`. They are kept in the browser; the server keeps rows only.

const PLACE = "tokenmill.conversations";

export function newConversation() {
  return { id: crypto.randomUUID?.() ?? `c${Date.now()}${Math.random()}`.replace(".", ""), title: "", turns: {}, leaf: null, kept: false, count: 0 };
}

// Add a turn below another (null: the first of the conversation) and make it the end of the conversation.
export function addTurn(conversation, parent, role, content) {
  const turn = { id: ++conversation.count, parent, role, content };
  conversation.turns[turn.id] = turn;
  conversation.leaf = turn.id;
  if (!conversation.title && role === "user") conversation.title = content.trim().slice(0, 60);
  return turn;
}

export function path(conversation, end = conversation.leaf) {
  const turns = [];
  for (let id = end; id !== null; id = conversation.turns[id].parent) turns.unshift(conversation.turns[id]);
  return turns;
}

export function siblings(conversation, turn) {
  return Object.values(conversation.turns).filter((other) => other.parent === turn.parent);
}

// Go to a sibling: the conversation ends with the latest turn below it.
export function goTo(conversation, turn) {
  let end = turn;
  for (;;) {
    const below = Object.values(conversation.turns).filter((other) => other.parent === end.id);
    if (!below.length) break;
    end = below.at(-1);
  }
  conversation.leaf = end.id;
}

// A conversation of its own that begins with the turns up to this one.
export function fork(conversation, turn) {
  const made = newConversation();
  for (const old of path(conversation, turn.id)) {
    const { id, parent, ...rest } = structuredClone(old);
    Object.assign(addTurn(made, made.leaf, old.role, old.content), rest);
  }
  made.title = `${conversation.title} (fork)`;
  return made;
}

export function messages(conversation, end, system) {
  const turns = end === null ? [] : path(conversation, end);
  const said = turns.map(({ role, content }) => ({ role, content }));
  return system ? [{ role: "system", content: system }, ...said] : said;
}

// What a turn or a conversation must be, since anything may have been written to the browser's storage.
const isTurn = (turn, turns) =>
  Number.isInteger(turn?.id) && ["user", "assistant"].includes(turn.role) && typeof turn.content === "string" &&
  (turn.parent === null || (turn.parent < turn.id && Object.hasOwn(turns, turn.parent)));
const isConversation = (one) =>
  typeof one?.id === "string" && typeof one.title === "string" && Number.isInteger(one.count) && one.turns instanceof Object &&
  Object.entries(one.turns).every(([id, turn]) => id === String(turn?.id) && isTurn(turn, one.turns)) &&
  (one.leaf === null || Object.hasOwn(one.turns, one.leaf));

export function load() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return Array.isArray(found) ? found.filter(isConversation) : [];
  } catch {
    return [];
  }
}

// Whether there was room. Probabilities take most of it, so they are left out.
export function save(conversations) {
  const without = (key, value) => (key === "tokens" || key === "isRunning" ? undefined : value);
  try {
    localStorage.setItem(PLACE, JSON.stringify(conversations.filter((one) => one.leaf !== null), without));
    return true;
  } catch {
    return false;
  }
}
