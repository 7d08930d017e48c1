// The model that answers: the only one that is served, or the one that is chosen among several.

import { tabStorage } from "./store.mjs";

const CHOSEN = "tokenmill.model"; // of this tab, over a reload

export class Models {
  id = undefined;
  limit = undefined;
  #all = new Map();
  #text = document.getElementById("model");
  #select = document.getElementById("models");

  // changed(): another one was chosen.
  constructor(changed) {
    this.#select.addEventListener("change", () => {
      try {
        tabStorage?.setItem(CHOSEN, this.#select.value);
      } catch { /* no room: the first one after a reload */ }
      this.#use(this.#select.value);
      changed();
    });
  }

  // Take the list of /v1/models. What was chosen stays, if it is still there.
  take(list) {
    this.#all = new Map(list.map((each) => [each.id, each.max_model_len]));
    const wanted = this.id ?? tabStorage?.getItem(CHOSEN), ids = [...this.#all.keys()];
    this.#select.replaceChildren(...ids.map((id) => new Option(id, id)));
    this.#select.hidden = ids.length < 2;
    this.#use(this.#all.has(wanted) ? wanted : ids[0]);
  }

  // A path about the model that is chosen.
  about(path) {
    return this.#all.size > 1 ? `${path}?model=${encodeURIComponent(this.id)}` : path;
  }

  #use(id) {
    [this.id, this.limit] = [id, this.#all.get(id)];
    this.#select.value = id;
    const length = `${this.limit.toLocaleString("en")} tokens`;
    this.#text.textContent = this.#select.hidden ? `${id}, ${length}` : length;
  }
}
