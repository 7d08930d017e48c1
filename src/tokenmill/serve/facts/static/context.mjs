// How much of the model's context a conversation fills, and what to leave out when it is full.

import { ask } from "./api.mjs";
import { messages, read } from "./conversation.mjs";

// The number of tokens of turns, as the chat template makes them.
const count = async (model, turns, system) => (await ask("/tokenize", { model, messages: messages(turns, system) })).count;

export class ContextNote {
  #wanted = null; // the last turn of what is counted

  constructor(box) {
    this.box = box;
  }

  // Show how full it is after the last turn. The server has said so with the answer, or is asked. limit: of the model with this id.
  async show(conversation, system, { id, limit }) {
    const last = conversation.turns[conversation.leaf];
    this.#wanted = last;
    if (!last || !limit) this.box.hidden = true;
    if (!last || !limit || last.isRunning) return;
    const { prompt_tokens: before, completion_tokens: made } = last.stats ?? {};
    const used = before === undefined || made === undefined ? await count(id, read(conversation, last.id), system).catch(() => undefined) : before + made;
    if (last !== this.#wanted) return;
    this.box.hidden = used === undefined;
    if (used === undefined) return;
    this.box.querySelector("meter").value = used / limit;
    this.box.querySelector("span").textContent = `${used.toLocaleString("en")} of ${limit.toLocaleString("en")} tokens of the context`;
    this.box.classList.toggle("full", used >= 0.9 * limit);
  }
}

// The first turn to be read before what follows `end`, if the oldest are left out: the first message with which half of
// the context stays free, or else the last one; undefined if there is none but the last.
export async function firstThatFits(conversation, end, system, { id, limit }) {
  const turns = read(conversation, end), starts = turns.slice(1).filter(({ role }) => role === "user");
  let low = 0, high = starts.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await count(id, turns.slice(turns.indexOf(starts[middle])), system) <= limit / 2) high = middle;
    else low = middle + 1;
  }
  return starts[low];
}

// Whether nothing more fits after an answer, and something before it can be left out.
export function isFull(conversation, turn, limit) {
  const { prompt_tokens: before = 0, completion_tokens: made = 0 } = turn.stats ?? {};
  const isAtEnd = turn.code === "context_length_exceeded" || (turn.finish === "length" && before + made >= limit);
  return isAtEnd && read(conversation, turn.id).filter(({ role }) => role === "user").length > 1;
}
