// The tokens of an answer, coloured by how likely each was, and what else might have stood there.

import { element } from "./element.mjs";

const BOUNDS = [0.1, 0.4, 0.8]; // of the four colours; certain tokens have none
const shown = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;

export function tokens(entries) {
  const box = element("div", { class: "tokens", tabindex: "0", "aria-label": "Tokens; arrow keys show their probabilities" });
  entries.forEach((entry, at) => {
    const p = Math.exp(entry.logprob), place = BOUNDS.findIndex((bound) => p < bound);
    box.append(element("span", { class: place < 0 ? (p < 0.95 ? "p3" : "") : `p${place}`, "data-at": at }, entry.token));
  });
  let current = -1;
  const show = (at) => {
    current = Math.min(Math.max(at, 0), entries.length - 1);
    showTip(box.children[current], entries[current]);
  };
  box.addEventListener("pointerover", ({ target }) => target.dataset.at && show(Number(target.dataset.at)));
  box.addEventListener("pointerleave", hideTip);
  box.addEventListener("blur", hideTip);
  box.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move || !entries.length) return;
    event.preventDefault();
    show(current + move);
  });
  return box;
}

const tip = () => document.getElementById("tip");
export const hideTip = () => { tip().hidden = true; };

function showTip(span, entry) {
  const others = entry.top_logprobs.filter((other) => other.token !== entry.token);
  const row = (one, kind) => element("div", { class: kind },
    element("span", {}, shown(one.token)), element("meter", { value: Math.exp(one.logprob) }), element("span", {}, percent(one.logprob)));
  tip().replaceChildren(...[entry, ...others].sort((a, b) => b.logprob - a.logprob).map((one) => row(one, one === entry ? "chosen" : "")));
  tip().hidden = false;
  const at = span.getBoundingClientRect(), size = tip().getBoundingClientRect();
  const below = at.bottom + 4 + size.height < innerHeight;
  tip().style.left = `${Math.max(4, Math.min(at.left, innerWidth - size.width - 4))}px`;
  tip().style.top = `${below ? at.bottom + 4 : at.top - size.height - 4}px`;
}
