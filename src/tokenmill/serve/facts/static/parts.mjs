// An answer as elements: what was thought and the calls of functions are folded, the text stands between them.

import { element } from "./element.mjs";
import { highlight } from "./highlight.mjs";
import { Markdown } from "./markdown.mjs";

const SHORT = 80; // characters of a call's arguments that stand beside its name

// Something folded that may grow. Its elements are kept, so that it stays open while it is read.
class Folded {
  #title = element("summary");
  #inside = element("div", { class: "inside" });
  box = element("details", {}, this.#title, this.#inside);
  #text = null;

  constructor(kind) {
    this.box.classList.add("folded", kind);
  }

  // label: its name for screen readers and for the focus.
  write(title, label, text, nodes) {
    this.#title.textContent = title;
    this.#title.setAttribute("aria-label", label);
    if (text === this.#text) return;
    this.#text = text;
    this.#inside.replaceChildren(...nodes(text));
  }
}

// The arguments of a call, laid out if they are all there.
function laidOut(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const code = (text) => [element("pre", {}, element("code", {}, ...highlight(laidOut(text), "json")))];
const short = (text) => (text.length > SHORT ? `${text.slice(0, SHORT - 1)}…` : text).replace(/\s+/g, " ");

export class Parts {
  #text = new Markdown();
  #thinking = null;
  #calls = [];
  box = element("div", { class: "parts" }, this.#text.box);

  write(turn) {
    const { thinking, content, calls = [], isRunning } = turn, isOnlyThinking = isRunning && !content && !calls.length;
    if (thinking && !this.#thinking) this.box.prepend((this.#thinking = new Folded("thinking")).box);
    this.#thinking?.write(isOnlyThinking ? "Thinking …" : "Thinking", "Thinking", thinking, (text) => [text]);
    this.#text.write(content);
    this.#text.box.classList.toggle("waiting", !!isRunning);
    for (const [place, { name, arguments: given }] of calls.entries()) {
      if (!this.#calls[place]) this.box.append((this.#calls[place] = new Folded("call")).box);
      this.#calls[place].write(`${name} ${short(given)}`, `Call ${place + 1}: ${name}`, given, code);
    }
  }
}
