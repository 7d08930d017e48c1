// What is set in the panel: read for a request, kept in the browser, and shared by the pages that are open.

import { storage, tabStorage } from "./store.mjs";

const PLACE = "tokenmill.settings";
const NUMBERS = Array.from(document.querySelectorAll("#panel input[type=number]"), (field) => field.id.slice("set-".length));
const FIELDS = [...NUMBERS.map((name) => `set-${name}`), "set-system", "set-tools", "theme", "set-logprobs"];
const $ = (id) => document.getElementById(id);

// Fields that a request has. A field that is empty is not sent. What is set and cannot be sent throws; whether a number
// is allowed, the server says.
export function sampling() {
  const found = {};
  for (const name of NUMBERS) {
    const field = $(`set-${name}`), value = field.valueAsNumber;
    if (field.value === "" && !field.validity.badInput) continue;
    const isExact = Number.isFinite(value) && (!Number.isInteger(value) || Number.isSafeInteger(value));
    if (!isExact) throw Object.assign(new Error(`${field.closest("label").textContent.trim()}: ${field.value || "what stands there"} is no number that can be sent.`), { field });
    found[name] = value;
  }
  const tools = toolsOf($("set-tools"));
  if (tools) found.tools = tools;
  return $("set-logprobs").checked ? { ...found, logprobs: true, top_logprobs: 5 } : found;
}

// The functions that stand in a field as JSON; undefined if it is empty.
function toolsOf(field) {
  if (!field.value.trim()) return undefined;
  try {
    const given = JSON.parse(field.value);
    if (Array.isArray(given)) return given;
  } catch { /* said below */ }
  throw Object.assign(new Error("Tools: what stands there is no list in JSON, such as [{\"type\": \"function\", …}]."), { field });
}

export const systemMessage = () => $("set-system").value.trim();
export const keyOfServer = () => $("key").value;

// changed(id): after each change of a field, in this page or in another one. unkept(): the browser has no room.
export function watch(changed, unkept) {
  recall();
  $("panel").addEventListener("input", ({ target }) => {
    try {
      if (target === $("key")) tabStorage?.setItem(`${PLACE}.key`, target.value); // for this tab alone
      else if (FIELDS.includes(target.id)) storage?.setItem(PLACE, JSON.stringify({ ...kept(), [target.id]: valueOf(target) }));
    } catch {
      unkept();
    }
    changed(target.id);
  });
  addEventListener("storage", ({ storageArea, key }) => {
    if (storageArea !== storage || key !== PLACE) return;
    recall();
    changed("theme");
  });
}

const valueOf = (field) => (field.type === "checkbox" ? field.checked : field.value);

function kept() {
  try {
    const found = JSON.parse(storage?.getItem(PLACE) ?? "{}");
    return found instanceof Object ? { ...found, "set-logprobs": found["set-logprobs"] ?? found.logprobs } : {};
  } catch {
    return {}; // not what this page writes
  }
}

function recall() {
  const found = kept();
  for (const id of FIELDS) {
    if ($(id) === document.activeElement) continue; // somebody types there
    if ($(id).type === "checkbox") $(id).checked = found[id] === true;
    else if (typeof found[id] === "string") $(id).value = found[id];
  }
  $("key").value ||= tabStorage?.getItem(`${PLACE}.key`) ?? "";
}
