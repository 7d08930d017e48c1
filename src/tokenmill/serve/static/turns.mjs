// The turns of a conversation as elements, with what can be done to each.

import { path, siblings } from "./conversation.mjs";
import { element, markdown, tokens } from "./render.mjs";

// What is shown of one answer: time to first token, tokens per second, lengths.
export function strip({ stats, finish }) {
  if (!stats) return "";
  const parts = [];
  if (stats.firstMs !== undefined) parts.push(`first token ${Math.round(stats.firstMs)} ms`);
  if (stats.perSecond !== undefined) parts.push(`${stats.perSecond.toFixed(1)} tokens/s`);
  if (stats.usage) {
    const { prompt_tokens: all, completion_tokens: made, prompt_tokens_details: { cached_tokens: cached } } = stats.usage;
    parts.push(`${made} tokens after ${all} (${cached} cached)`);
  }
  if (finish === "length") parts.push("cut at the limit of tokens");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

export class TurnList {
  // actions: edit(turn, text), retry(turn), fork(turn), go(turn)
  constructor(box, actions) {
    Object.assign(this, { box, actions, showsTokens: new Set() });
  }

  draw(conversation, isBusy) {
    this.conversation = conversation;
    this.isBusy = isBusy;
    this.box.replaceChildren(...(conversation.leaf === null ? [this.#hint()] : path(conversation).map((turn) => this.#turn(turn))));
    this.box.scrollTop = this.box.scrollHeight;
  }

  // Draw one turn again, which has grown; scroll along unless the reader has scrolled up.
  update(turn) {
    const { box } = this, old = box.querySelector(`[data-turn="${turn.id}"]`);
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
    old?.replaceWith(this.#turn(turn));
    if (follows) box.scrollTop = box.scrollHeight;
  }

  #hint() {
    return element("p", { class: "quiet" }, "A conversation begins with a message below. It stays in this browser.");
  }

  #turn(turn) {
    const body = this.#body(turn);
    const said = turn.error ? [element("p", { class: "error" }, turn.error)] : [];
    const named = turn.role === "user" ? "You" : "Answer";
    return element("article", { class: `turn ${turn.role}`, "data-turn": turn.id, "aria-label": named, "aria-busy": String(!!turn.isRunning) }, body, ...said, this.#bar(turn));
  }

  #body(turn) {
    if (turn.role === "user") return element("div", { class: "body" }, turn.content);
    if (turn.tokens?.length && this.showsTokens.has(turn)) return element("div", { class: "body" }, tokens(turn.tokens));
    return element("div", { class: turn.isRunning ? "body waiting" : "body" }, markdown(turn.content));
  }

  #bar(turn) {
    const { conversation, actions } = this, all = siblings(conversation, turn), at = all.indexOf(turn);
    const button = (text, label, click, off = this.isBusy) => element("button", { type: "button", title: label, "aria-label": label, disabled: off, click }, text);
    const bar = element("div", { class: "bar" });
    if (all.length > 1) {
      bar.append(
        button("‹", "The version before", () => actions.go(all[at - 1]), this.isBusy || at === 0), `${at + 1}/${all.length}`,
        button("›", "The version after", () => actions.go(all[at + 1]), this.isBusy || at === all.length - 1));
    }
    if (turn.role === "user") bar.append(button("edit", "Edit this message; the old one stays", () => this.#edit(turn)));
    else bar.append(button("retry", "Answer again; the old answer stays", () => actions.retry(turn)));
    bar.append(button("fork", "A new conversation from here", () => actions.fork(turn)));
    if (turn.role === "assistant" && turn.content) bar.append(button("copy", "Copy the text", () => navigator.clipboard?.writeText(turn.content), false));
    if (turn.tokens?.length) {
      const on = this.showsTokens.has(turn), toggle = () => { this.showsTokens[on ? "delete" : "add"](turn); this.update(turn); };
      bar.append(button(on ? "text" : "tokens", on ? "Show as text" : "Show tokens and their probabilities", toggle, turn.isRunning));
    }
    bar.append(element("span", { class: "strip" }, strip(turn)));
    return bar;
  }

  #edit(turn) {
    const text = element("textarea", { rows: "3", "aria-label": "The message, edited" });
    text.value = turn.content;
    const done = () => text.value.trim() && this.actions.edit(turn, text.value.trim()), undo = () => this.update(turn);
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); done(); }
      if (event.key === "Escape") undo();
    });
    const bar = element("div", { class: "bar" }, element("button", { type: "button", click: done }, "send"), element("button", { type: "button", click: undo }, "cancel"));
    this.box.querySelector(`[data-turn="${turn.id}"]`).replaceChildren(text, bar);
    text.focus();
  }
}
