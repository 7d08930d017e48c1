// Answers that are being written: at most one in each conversation, and any number of conversations at once.

import { events } from "./api.mjs";
import { readUsage } from "./record.mjs";

export class Answers {
  #running = new Map(); // conversation → the controller of its request

  // grown(conversation, turn), ended(conversation, turn); named(id, conversation): the answer's name on the server.
  constructor({ grown, ended, named }) {
    Object.assign(this, { grown, ended, named });
  }

  isRunning(conversation) {
    return this.#running.has(conversation);
  }

  stop(conversation) {
    this.#running.get(conversation)?.abort();
  }

  // Write the answer to a request into a turn, whose `finish` or `error` says at the end why it ended.
  async write(conversation, turn, body) {
    const control = new AbortController();
    this.#running.set(conversation, control);
    Object.assign(turn, { isRunning: true, stats: {} });
    let end;
    try {
      end = { finish: await this.#read(conversation, turn, events("/v1/chat/completions", body, control.signal)) };
    } catch (error) {
      end = control.signal.aborted ? { finish: "stopped" } : { error: error.message, code: error.code };
    }
    Object.assign(turn, end, { isRunning: false });
    this.#running.delete(conversation);
    this.ended(conversation, turn);
  }

  // Take in a stream; returns why it ended. Speed is counted from the first token to the last.
  async #read(conversation, turn, stream) {
    const begun = performance.now(), before = turn.tokens?.length ?? 0;
    let first, last, count = 0, finish;
    for await (const { id, choices, usage, prompt_progress: prompt } of stream) {
      const choice = choices?.[0], delta = choice?.delta ?? {}, text = delta.content, logprobs = choice?.logprobs?.content;
      const thought = delta.reasoning_content ?? delta.reasoning, called = delta.tool_calls;
      this.named(id, conversation);
      if (prompt) turn.stats.prompt = prompt;
      finish = choice?.finish_reason ?? finish;
      if (text || logprobs || thought || called) {
        turn.content += text ?? "";
        if (thought) turn.thinking = (turn.thinking ?? "") + thought;
        for (const piece of called ?? []) addPiece((turn.calls ??= []), piece);
        turn.tokens?.push(...(logprobs ?? []));
        last = performance.now();
        first ??= last;
        delete turn.stats.prompt;
        count = (turn.tokens?.length ?? 0) - before;
        turn.stats.firstMs ??= first - begun;
      }
      if (usage) Object.assign(turn.stats, readUsage(usage));
      count = turn.stats.completion_tokens ?? count;
      if (count > 1 && last > first) turn.stats.perSecond = (count - 1) / (last - first) * 1000;
      this.grown(conversation, turn);
    }
    if (!finish) throw new Error("the server ended the stream without saying that the answer has ended");
    return finish;
  }
}

// The first piece of a call has its name, the others more of its arguments.
function addPiece(calls, { index, id, function: named }) {
  const call = (calls[index ?? calls.length] ??= { id: "", name: "", arguments: "" });
  call.id ||= id ?? "";
  call.name += named?.name ?? "";
  call.arguments += named?.arguments ?? "";
}
