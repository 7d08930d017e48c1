// Conversations as text, in the browser's storage and in files. Anything may have been written there, so what is read
// is made anew of the fields that are known, each checked; null stands for what is no conversation.

const NAME = /^[A-Za-z0-9_-]{1,64}$/; // what the server takes as the name of a session
const isWhole = (value) => Number.isSafeInteger(value) && value >= 0;
const number = (value) => (Number.isFinite(value) ? value : undefined);
const text = (value) => (typeof value === "string" && value ? value : undefined);

// Probabilities of tokens would take most of the room, so they are left out.
export const write = (conversation) => JSON.stringify(conversation, (key, value) => (key === "tokens" || key === "isRunning" ? undefined : value));

export function parse(written) {
  try {
    return readConversation(JSON.parse(written));
  } catch {
    return null;
  }
}

export function readConversation(given) {
  if (typeof given?.id !== "string" || !NAME.test(given.id) || typeof given.title !== "string" || !(given.turns instanceof Object)) return null;
  const turns = {};
  for (const [id, each] of Object.entries(given.turns)) {
    const turn = readTurn(each, given.turns);
    if (turn === null || id !== String(turn.id)) return null;
    turns[id] = turn;
  }
  if (!Object.hasOwn(turns, given.leaf)) return null; // an empty one is never written
  const { id, title, leaf, kept } = given;
  return { id, title, begun: number(given.begun) ?? 0, changed: number(given.changed) ?? 0, kept: kept === true, turns, leaf };
}

function readTurn(given, turns) {
  const { id, parent, role, content } = given ?? {};
  const isBelow = parent === null || (isWhole(parent) && parent < id && Object.hasOwn(turns, parent)); // so there is no circle
  if (!isWhole(id) || !["user", "assistant"].includes(role) || typeof content !== "string" || !isBelow) return null;
  const since = isWhole(given.since) && Object.hasOwn(turns, given.since) ? given.since : undefined;
  const more = { finish: text(given.finish), error: text(given.error), code: text(given.code), since, stats: readStats(given.stats), thinking: text(given.thinking), calls: readCalls(given.calls) };
  return { id, parent, role, content, ...Object.fromEntries(Object.entries(more).filter(([, value]) => value !== undefined)) };
}

// The calls of functions that an answer makes; undefined if one of them is none.
function readCalls(given) {
  const isCall = (call) => [call?.id, call?.name, call?.arguments].every((each) => typeof each === "string");
  if (!Array.isArray(given) || !given.length || !given.every(isCall)) return undefined;
  return given.map(({ id, name, arguments: text }) => ({ id, name, arguments: text }));
}

function readStats(given) {
  return given instanceof Object ? { firstMs: number(given.firstMs), perSecond: number(given.perSecond), ...readUsage(given.usage ?? given) } : undefined;
}

// How many tokens the prompt, the answer and what was cached of the prompt had, as the server says it.
export function readUsage(usage) {
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = usage;
  return { prompt_tokens: number(prompt_tokens), completion_tokens: number(completion_tokens), cached_tokens: number(prompt_tokens_details?.cached_tokens ?? usage.cached_tokens) };
}
