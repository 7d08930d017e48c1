// The turns of a conversation as elements, with what can be done to each.

import { hasEnded, path, read, siblings } from "./conversation.mjs";
import { button, copyButton, element, isComposing } from "./element.mjs";
import { Parts } from "./parts.mjs";
import { tokens } from "./probabilities.mjs";

const WHOLE = ["stop", "tool_calls"]; // ends of answers that are all there
const ENDS = { length: "cut at the limit of tokens", stopped: "stopped" };

// What is shown of one answer: time to first token, tokens per second, lengths, why it ended if not by itself.
export function strip({ stats, finish }) {
  const { firstMs, perSecond, prompt_tokens: all, completion_tokens: made, cached_tokens: cached, prompt } = stats ?? {}, parts = [];
  if (prompt && firstMs === undefined) parts.push(`reading the prompt: ${prompt.processed} of ${prompt.total} tokens`);
  if (firstMs !== undefined) parts.push(`first token ${Math.round(firstMs)} ms`);
  if (perSecond !== undefined) parts.push(`${perSecond.toFixed(1)} tokens/s`);
  if (made !== undefined) parts.push(`${made} tokens after ${all}${cached === undefined ? "" : ` (${cached} cached)`}`);
  if (ENDS[finish]) parts.push(ENDS[finish]);
  return parts.join(" · ");
}

export class TurnList {
  #bodies = new WeakMap(); // turn → its parts as elements
  #editors = new Map(); // id of a turn that is edited → its element, which is kept as it is
  #showsTokens = new WeakSet();

  // actions: edit(turn, text), retry(turn), goOn(turn), leaveOut(turn), fork(turn), go(turn), isFull(turn)
  constructor(box, actions) {
    Object.assign(this, { box, actions });
  }

  // isBusy: an answer is being written in this conversation.
  draw(conversation, isBusy) {
    const { box } = this, isOther = conversation !== this.conversation, follows = isOther || this.#isAtEnd();
    if (isOther) this.#editors.clear();
    Object.assign(this, { conversation, isBusy });
    const focused = this.#focused(), turns = conversation.leaf === null ? [] : path(conversation);
    const first = turns.length ? read(conversation, conversation.leaf)[0] : undefined;
    const parts = turns.flatMap((turn) => [...(turn === first && turn !== turns[0] ? [this.#border()] : []), this.#turn(turn)]);
    box.replaceChildren(...(parts.length ? parts : [this.#hint()]));
    focused();
    if (follows) box.scrollTop = box.scrollHeight;
  }

  // Draw an answer that has grown; scroll along unless the reader has scrolled up. Its buttons stay, to be pressed.
  update(turn) {
    const follows = this.#isAtEnd();
    this.#body(turn);
    this.#find(turn.id).querySelector(".strip").textContent = strip(turn);
    if (follows) this.box.scrollTop = this.box.scrollHeight;
  }

  #again(turn) {
    this.#find(turn.id)?.replaceWith(this.#turn(turn)); // null: another version is shown by now
  }

  #find(id) {
    return this.box.querySelector(`[data-turn="${id}"]`);
  }

  #isAtEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 80;
  }

  // Returns what gives the focus back to where it is now, after all was drawn anew.
  #focused() {
    const at = document.activeElement, id = at?.closest("[data-turn]")?.dataset.turn, label = at?.getAttribute("aria-label"), place = [at?.selectionStart, at?.selectionEnd];
    return () => {
      if (!id || !label || !this.box.contains(this.#find(id))) return;
      const again = [...this.#find(id).querySelectorAll("[aria-label]")].find((each) => each.getAttribute("aria-label") === label);
      again?.focus({ preventScroll: true });
      if (again === at && place[0] !== undefined) at.setSelectionRange(...place);
    };
  }

  #hint() {
    return element("p", { class: "quiet hint" }, "A conversation begins with a message below. It stays in this browser.");
  }

  #border() {
    return element("p", { class: "border" }, "What stands above is left out of what the model reads, so that there is room.");
  }

  #turn(turn) {
    if (this.#editors.has(turn.id)) return this.#editors.get(turn.id);
    const said = turn.error ? [element("p", { class: "error" }, turn.error)] : [], named = turn.role === "user" ? "You" : "Answer";
    return element("article", { class: `turn ${turn.role}`, "data-turn": turn.id, "aria-label": named, "aria-busy": String(!!turn.isRunning) }, this.#body(turn), ...said, this.#bar(turn));
  }

  #body(turn) {
    if (turn.role === "user") return element("div", { class: "body" }, turn.content);
    if (turn.tokens?.length && this.#showsTokens.has(turn)) return element("div", { class: "body" }, tokens(turn.tokens));
    if (!this.#bodies.has(turn)) this.#bodies.set(turn, new Parts());
    const body = this.#bodies.get(turn);
    body.write(turn);
    return body.box;
  }

  #bar(turn) {
    const bar = element("div", { class: "bar" }, ...this.#versions(turn));
    const act = (name, title, action) => bar.append(button(name, title, action, { disabled: this.isBusy }));
    if (turn.role === "user") act("edit", "Edit this message; the old one stays", () => this.#edit(turn));
    else this.#answerActions(turn, act);
    act("fork", "A new conversation from here", () => this.actions.fork(turn));
    if (turn.content || turn.isRunning) bar.append(copyButton("Copy the text", () => turn.content));
    if (turn.tokens?.length && !turn.isRunning) bar.append(this.#tokenSwitch(turn));
    const lacksEnd = !hasEnded(turn) && !turn.isRunning ? "not ended" : strip(turn);
    bar.append(element("span", { class: "strip" }, lacksEnd));
    return bar;
  }

  #answerActions(turn, act) {
    act("retry", "Answer again; the old answer stays", () => this.actions.retry(turn));
    if (turn.isRunning) return;
    const isCut = turn.content && !WHOLE.includes(turn.finish), isFull = this.actions.isFull(turn);
    if (isCut && !isFull) act("continue", "Go on where this answer ends; the old one stays", () => this.actions.goOn(turn));
    if (isFull) act("leave out the oldest turns", "The context is full: go on without the oldest turns, which stay here to be read", () => this.actions.leaveOut(turn));
  }

  #versions(turn) {
    const all = siblings(this.conversation, turn), at = all.indexOf(turn);
    if (all.length < 2) return [];
    const to = (text, title, place) => button(text, title, () => this.actions.go(all[place]), { disabled: this.isBusy || !all[place] });
    return [to("‹", "The version before", at - 1), `${at + 1}/${all.length}`, to("›", "The version after", at + 1)];
  }

  #tokenSwitch(turn) {
    const on = this.#showsTokens.has(turn), toggle = () => { this.#showsTokens[on ? "delete" : "add"](turn); this.#again(turn); };
    return button(on ? "text" : "tokens", on ? "Show as text" : "Show tokens and their probabilities", toggle);
  }

  #edit(turn) {
    const text = element("textarea", { rows: "3", "aria-label": "The message, edited" });
    text.value = turn.content;
    const close = () => { this.#editors.delete(turn.id); this.#again(turn); };
    const done = () => { if (text.value.trim() && this.actions.edit(turn, text.value.trim())) close(); };
    text.addEventListener("keydown", (event) => {
      if (isComposing(event) || !["Enter", "Escape"].includes(event.key) || event.shiftKey) return;
      event.preventDefault();
      event.stopPropagation(); // an answer in another turn goes on
      if (event.key === "Enter") done();
      else close();
    });
    const bar = element("div", { class: "bar" }, button("send", "Send it; the old message stays", done), button("cancel", "Leave it as it was", close));
    const editor = element("article", { class: "turn user", "data-turn": turn.id, "aria-label": "You" }, text, bar);
    this.#find(turn.id).replaceWith(editor);
    this.#editors.set(turn.id, editor);
    text.focus();
  }
}
