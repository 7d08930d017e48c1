// Conversations in the browser's storage, each under a key of its own, so that several pages can write at once. What
// this page holds is put together with what others have written whenever they tell of it, and before each write.
// Nothing that cannot be read, or for which there is no room, is thrown away.

import { contradict, merge, newId } from "./conversation.mjs";
import { parse, write } from "./record.mjs";

const PREFIX = "tokenmill.conversation.";
const EVERY_MS = 1000; // how often an answer that grows is written

// A storage of the browser, or null: where it is told to keep nothing, naming it throws.
function storageOf(kind) {
  try {
    return window[kind];
  } catch {
    return null;
  }
}
export const storage = storageOf("localStorage"), tabStorage = storageOf("sessionStorage");

export class Store {
  conversations = new Map(); // by id
  unreadable = new Map(); // key → what stands there
  unsaved = []; // what the last attempt could not write
  #known = new Map(); // id → what stands in the storage, as far as this page knows
  #waiting = new Set(); // to be written
  #erased = new Set(); // ids, so that a page that was writing one does not bring it back
  #timer = null;
  #lastMs = 0;

  // heard: what other pages have done, as changed(conversation), which may be a new one, and removed(conversation).
  // wrote(): after each attempt to write.
  constructor(heard, wrote) {
    this.wrote = wrote;
    if (!storage) return;
    this.#look();
    this.heard = heard;
    addEventListener("storage", ({ storageArea, key, newValue }) => {
      if (storageArea !== storage) return;
      if (key === null) this.#look();
      else this.#hear(key, newValue);
    });
    addEventListener("pageshow", () => this.#look()); // nothing is told to a page that the browser has put aside
    document.addEventListener("resume", () => this.#look());
    addEventListener("pagehide", () => this.flush());
    document.addEventListener("visibilitychange", () => this.flush());
  }

  add(conversation) {
    this.#erased.delete(conversation.id);
    this.conversations.set(conversation.id, conversation);
  }

  // Write a conversation now, or within a second.
  save(conversation) {
    this.#wants(conversation);
    this.flush();
  }

  touch(conversation) {
    this.#wants(conversation);
    if (performance.now() - this.#lastMs >= EVERY_MS) this.flush(); // timers of hidden pages may wait for a minute
  }

  #wants(conversation) {
    if (conversation.leaf === null || !this.conversations.has(conversation.id)) return;
    this.#waiting.add(conversation);
    this.#timer ??= setTimeout(() => this.flush(), EVERY_MS);
  }

  flush() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#lastMs = performance.now();
    for (const one of this.#waiting) {
      if (this.#write(one)) this.#waiting.delete(one);
    }
    this.unsaved = [...this.#waiting];
    this.wrote();
  }

  remove({ id }) {
    this.#erased.add(id);
    this.#forget(id);
    storage?.removeItem(PREFIX + id);
    this.flush(); // there is room now
  }

  removeUnreadable(key) {
    this.unreadable.delete(key);
    storage.removeItem(key);
    this.flush();
  }

  #forget(id) {
    this.#waiting.delete(this.conversations.get(id));
    this.conversations.delete(id);
    this.#known.delete(id);
  }

  // Whether it stands in the storage now, or need not.
  #write(conversation) {
    const key = PREFIX + conversation.id, stored = storage?.getItem(key) ?? null;
    if (stored !== null || this.#known.has(conversation.id)) this.#hear(key, stored);
    if (!this.conversations.has(conversation.id)) return true; // another page has just removed it
    if (!put(key, write(conversation))) return false;
    this.#known.set(conversation.id, storage.getItem(key));
    return true;
  }

  #look() {
    for (const id of [...this.#known.keys()]) this.#hear(PREFIX + id, storage.getItem(PREFIX + id));
    for (const key of Object.keys(storage)) this.#hear(key, storage.getItem(key));
  }

  // What stands under a key, or null. It may be what this page has written, or knows already.
  #hear(key, text) {
    if (!key.startsWith(PREFIX)) return;
    const id = key.slice(PREFIX.length), mine = this.conversations.get(id);
    if (text === this.#known.get(id)) return;
    if (text === null) this.#gone(key, id);
    else if (this.#erased.has(id)) storage.removeItem(key);
    else this.#take(key, parse(text), mine, text);
  }

  #gone(key, id) {
    const mine = this.conversations.get(id);
    this.unreadable.delete(key);
    if (!mine || !this.#known.has(id)) return;
    this.#forget(id);
    this.heard?.removed(mine);
  }

  #take(key, theirs, mine, text) {
    if (theirs === null || PREFIX + theirs.id !== key) {
      if (mine) this.#wants(mine); // this page has it, and writes it again
      else this.unreadable.set(key, text);
      return;
    }
    this.#known.set(theirs.id, text);
    if (!mine) {
      this.conversations.set(theirs.id, theirs);
      this.heard?.changed(theirs);
      return;
    }
    if (merge(mine, theirs)) this.#wants(mine);
    this.heard?.changed(mine);
  }

  // Take in a conversation from elsewhere; returns the one that holds it now. Nothing is written.
  include(given) {
    const mine = this.conversations.get(given.id);
    if (mine && !contradict(mine, given)) {
      merge(mine, given);
      return mine;
    }
    if (mine) given.id = newId();
    this.add(given);
    return given;
  }
}

function put(key, text) {
  try {
    storage.setItem(key, text);
    return storage.getItem(key) === text;
  } catch {
    return false; // no room, or no storage
  }
}
