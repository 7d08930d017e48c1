// The list of conversations, with what can be done to the one that is open.

import { button, element, isComposing } from "./element.mjs";
import { download } from "./files.mjs";

export const titleOf = (conversation) => conversation.title || "New conversation";

export class ConversationList {
  #renames = null; // the conversation whose title is being typed

  // actions: open, keep, rename(conversation, text), save, remove, removeUnreadable(key). isRunning(conversation).
  constructor(box, actions, isRunning) {
    Object.assign(this, { box, actions, isRunning });
  }

  draw(store, current) {
    this.drawn = [store, current];
    if (this.#renames === current) return; // until that is done
    this.#renames = null;
    const all = [...store.conversations.values()].sort((one, other) => other.begun - one.begun);
    if (!all.includes(current)) all.unshift(current);
    const focused = this.box.contains(document.activeElement) && document.activeElement.title;
    const lines = all.map((one) => this.#line(one, one === current, store.unsaved.includes(one)));
    this.box.replaceChildren(...lines, ...[...store.unreadable].map((entry) => this.#unreadable(...entry)));
    if (focused) [...this.box.querySelectorAll("button")].find(({ title }) => title === focused)?.focus();
  }

  #line(one, isCurrent, isUnsaved) {
    const marks = [this.isRunning(one) && "answering", isUnsaved && "not saved", one.kept && "★"].filter(Boolean);
    const open = element("button", { type: "button", class: "title", title: titleOf(one), click: () => this.actions.open(one) },
      element("span", {}, titleOf(one)), ...marks.map((mark) => element("small", {}, mark)));
    return element("li", { "aria-current": isCurrent && "true" }, open, ...(isCurrent && one.leaf !== null ? [this.#actions(one)] : []));
  }

  #actions(one) {
    const { keep, save, remove } = this.actions;
    return element("div", { class: "bar" },
      button("rename", "Give it another title", () => this.#rename(one)),
      button(one.kept ? "★" : "☆", one.kept ? "Kept on the server; press to forget it there" : "Keep its rows on the server, for a quick start after a restart", () => keep(one), { "aria-pressed": String(one.kept) }),
      button("export", "Save it to a file", () => save(one)),
      button("delete", "Delete it from this browser", () => remove(one)));
  }

  #rename(one) {
    const field = element("input", { "aria-label": "Title", maxlength: "200" });
    field.value = one.title;
    this.#renames = one;
    let isOver = false;
    const end = (isKept) => {
      if (isOver) return;
      isOver = true;
      this.#renames = null;
      if (isKept && field.value.trim()) this.actions.rename(one, field.value);
      else this.draw(...this.drawn);
    };
    field.addEventListener("keydown", (event) => {
      if (isComposing(event)) return;
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") { event.stopPropagation(); end(false); }
    });
    field.addEventListener("blur", () => end(true));
    this.box.querySelector("[aria-current] .title").replaceWith(field);
    field.select();
    field.focus();
  }

  #unreadable(key, text) {
    return element("li", {}, element("p", { class: "error" }, "Something in the browser's storage is no conversation that this page can read."),
      element("div", { class: "bar" },
        button("save to a file", "Save what stands there to a file, as it is", () => download(`${key}.txt`, text)),
        button("delete", "Delete it from this browser", () => this.actions.removeUnreadable(key))));
  }
}
