// The live view of the cache: a map of its blocks, and who holds them.

import { ask } from "./api.mjs";
import { element } from "./element.mjs";

const EVERY_MS = 1000;
const KINDS = { f: "--free", k: "--kept", u: "--used", s: "--shared" }; // as /v1/cache calls the states of blocks

export class CacheView {
  // about(path): for the model that is chosen. titleOf(id): of the conversation that an answer belongs to. tell(view): after each look, null if the server does not answer.
  constructor(about, titleOf, tell) {
    Object.assign(this, { about, titleOf, tell, details: document.getElementById("cache-details"), map: document.getElementById("cache-map") });
    new ResizeObserver(() => this.seen && this.#drawMap(this.seen.blocks)).observe(this.map);
    this.#loop();
  }

  async #loop() {
    for (;;) {
      if (!document.hidden) await this.look();
      await new Promise((go) => setTimeout(go, EVERY_MS));
    }
  }

  async look() {
    try {
      this.seen = await ask(this.about("/v1/cache"));
      this.tell(this.seen);
      if (this.details.open && this.map.offsetParent !== null) this.#draw(this.seen);
    } catch (error) {
      this.tell(null, error);
    }
  }

  #draw({ blocks, block_size: size, texts, others, sessions }) {
    const count = (kind) => [...blocks].filter((one) => one === kind).length, shared = count("s"), used = count("u") + shared;
    document.getElementById("cache-total").textContent =
      `${used} of ${blocks.length} blocks of ${size} tokens in use, ${shared} shared, ${count("k")} kept for prompts that begin alike`;
    this.#drawMap(blocks);
    const row = (...cells) => element("tr", {}, ...cells.map((cell) => element("td", { title: String(cell) }, String(cell))));
    const rows = texts.map((text) => row(this.titleOf(text.id) ?? "another client", text.state, text.tokens, text.blocks, text.shared));
    if (sessions.texts) rows.push(row(`${sessions.texts} of sessions`, "kept", "", sessions.blocks, ""));
    if (others.texts) rows.push(row(`${others.texts} of other keys`, "", "", others.blocks, ""));
    document.getElementById("cache-texts").hidden = !rows.length;
    document.querySelector("#cache-texts tbody").replaceChildren(...rows);
  }

  #drawMap(blocks) {
    const { map } = this, scale = devicePixelRatio, width = map.clientWidth * scale, height = map.clientHeight * scale;
    if (!width) return;
    Object.assign(map, { width, height });
    const columns = Math.max(1, Math.round(Math.sqrt(blocks.length * width / height))), rows = Math.ceil(blocks.length / columns);
    const across = width / columns, down = height / rows, gap = across > 5 && down > 5 ? scale : 0;
    const style = getComputedStyle(document.documentElement), context = map.getContext("2d");
    for (const [at, kind] of [...blocks].entries()) {
      context.fillStyle = style.getPropertyValue(KINDS[kind]);
      context.fillRect((at % columns) * across, Math.floor(at / columns) * down, across - gap, down - gap);
    }
  }
}
