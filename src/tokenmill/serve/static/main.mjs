// The page: what its controls do.

import { ask, call, events, setKey } from "./api.mjs";
import { CacheView } from "./cache.mjs";
import { addTurn, fork, goTo, load, messages, newConversation, save } from "./conversation.mjs";
import { element, hideTip } from "./render.mjs";
import { TurnList } from "./turns.mjs";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"];
const PLACE = "tokenmill.settings";

const conversations = load();
const names = new Map(); // ids of answers → titles, for the view of the cache
let current = conversations[0] ?? begin();
let running = null; // the AbortController of the answer that is being written
let model;

const turns = new TurnList($("turns"), {
  edit: (turn, text) => answer(addTurn(current, turn.parent, "user", text)),
  retry: (turn) => answer(current.turns[turn.parent]),
  fork: (turn) => { const made = fork(current, turn); conversations.unshift(made); open(made); },
  go: (turn) => { goTo(current, turn); draw(); },
});

// ---- conversations

function begin() {
  const made = newConversation();
  conversations.unshift(made);
  return made;
}

function open(conversation) {
  current = conversation;
  if (conversation.kept) ask(`/v1/sessions/${conversation.id}/restore`, {}).catch(() => {}); // its rows, if they are still there
  draw();
  $("message").focus();
}

function draw() {
  turns.draw(current, running !== null);
  const line = (one) => element("li", { "aria-current": one === current && "true" },
    element("button", { type: "button", disabled: running !== null, click: () => open(one) }, one.title || "New conversation"),
    element("button", { type: "button", disabled: running !== null || one.leaf === null, "aria-pressed": String(one.kept), title: one.kept ? "Kept on the server; press to forget it there" : "Keep its rows on the server, for a quick start after a restart", click: () => keep(one) }, one.kept ? "★" : "☆"),
    element("button", { type: "button", disabled: running !== null, title: "Delete", "aria-label": `Delete ${one.title}`, click: () => remove(one) }, "✕"));
  $("conversation-list").replaceChildren(...conversations.map(line));
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
  if (!save(conversations)) notice("The browser has no room for these conversations: delete some.");
}

async function keep(one) {
  try {
    if (one.kept) await ask(`/v1/sessions/${one.id}/erase`, {});
    else await call(`/v1/sessions/${one.id}/save`, { messages: messages(one, one.leaf, settings().system) }).then((said) => said.json());
    one.kept = !one.kept;
  } catch (error) {
    if (error.status === 404) one.kept = false;
    notice(error.message);
  }
  draw();
}

function remove(one) {
  if (one.leaf !== null && !confirm(`Delete “${one.title}”?`)) return;
  if (one.kept) ask(`/v1/sessions/${one.id}/erase`, {}).catch(() => {});
  conversations.splice(conversations.indexOf(one), 1);
  if (one === current) current = conversations[0] ?? begin();
  draw();
}

// ---- an answer

async function answer(asked) {
  if (running) return;
  notice("");
  const control = new AbortController(), conversation = current;
  const { system, ...sampling } = settings();
  const said = messages(conversation, asked.id, system);
  const turn = Object.assign(addTurn(conversation, asked.id, "assistant", ""), { isRunning: true, tokens: [], stats: {} });
  running = control;
  draw();
  const body = { model, messages: said, stream: true, stream_options: { include_usage: true }, ...sampling };
  let isDue = false;
  const show = () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; if (turn.isRunning) turns.update(turn); });
  };
  try {
    await read(turn, events("/v1/chat/completions", body, control.signal), conversation.title, show);
  } catch (error) {
    if (control.signal.aborted) turn.finish = "stopped";
    else turn.error = error.message;
  }
  turn.isRunning = false;
  running = null;
  draw();
}

// Take in a stream. Speed is counted from the first token to the last.
async function read(turn, stream, title, show) {
  const begun = performance.now();
  let first, last, count = 0;
  for await (const { id, choices: [choice], usage } of stream) {
    names.set(id, title);
    if (usage) turn.stats.usage = usage;
    if (choice?.finish_reason) turn.finish = choice.finish_reason;
    const text = choice?.delta.content;
    if (text || choice?.logprobs) {
      turn.content += text ?? "";
      turn.tokens.push(...(choice.logprobs?.content ?? []));
      last = performance.now();
      first ??= last;
      count = turn.tokens.length;
      turn.stats.firstMs ??= first - begun;
    }
    count = turn.stats.usage?.completion_tokens ?? count;
    if (count > 1 && last > first) turn.stats.perSecond = (count - 1) / (last - first) * 1000;
    show();
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (!text || running) return;
  $("message").value = "";
  answer(addTurn(current, current.leaf, "user", text));
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", () => open(current.leaf === null ? current : begin()));
document.addEventListener("keydown", ({ key }) => {
  if (key !== "Escape") return;
  running?.abort();
  hideTip();
});
$("turns").addEventListener("scroll", hideTip);

// ---- settings, and what is open

function settings() {
  const found = { system: $("set-system").value.trim() };
  for (const name of NUMBERS) {
    const field = $(`set-${name}`);
    if (field.value !== "" && field.checkValidity()) found[name] = Number(field.value);
  }
  if ($("set-logprobs").checked) Object.assign(found, { logprobs: true, top_logprobs: 5 });
  return found;
}

const FIELDS = [...NUMBERS.map((name) => `set-${name}`), "set-system", "theme"];
function keepSettings() {
  const values = Object.fromEntries(FIELDS.map((id) => [id, $(id).value]));
  try {
    localStorage.setItem(PLACE, JSON.stringify({ ...values, logprobs: $("set-logprobs").checked }));
    sessionStorage.setItem(`${PLACE}.key`, $("key").value);
  } catch { /* a browser that stores nothing: they hold until it is closed */ }
  applySettings();
}

function recallSettings() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE) ?? "{}");
    for (const id of FIELDS) if (typeof found[id] === "string") $(id).value = found[id];
    $("set-logprobs").checked = found.logprobs === true;
    $("key").value = sessionStorage.getItem(`${PLACE}.key`) ?? "";
  } catch { /* as above, or not what keepSettings writes */ }
  applySettings();
}

function applySettings() {
  document.documentElement.dataset.theme = $("theme").value;
  setKey($("key").value);
}

function toggle(button, box) {
  box.hidden = !box.hidden;
  button.setAttribute("aria-expanded", String(!box.hidden));
}
$("open-conversations").addEventListener("click", ({ currentTarget }) => toggle(currentTarget, $("conversations")));
$("open-panel").addEventListener("click", ({ currentTarget }) => { toggle(currentTarget, $("panel")); cache.look(); });
$("panel").addEventListener("change", async ({ target }) => { keepSettings(); if (target.id === "key") await greet(); });

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

async function greet() {
  try {
    const [{ id, max_model_len: most }] = (await ask("/v1/models")).data;
    model = id;
    $("model").textContent = `${id}, ${most.toLocaleString("en")} tokens`;
    notice("");
  } catch (error) {
    notice(error.status === 401 ? "This server wants a key: give it under ⚙, This page." : error.message);
    if (error.status === 401 && $("panel").hidden) $("open-panel").click();
    if (error.status === 401) $("key").closest("details").open = true;
  }
}

const cache = new CacheView(names, (seen, error) => {
  $("load").textContent = seen ? `${seen.running} running, ${seen.waiting} waiting` : "";
  if (error && error.status === undefined) $("load").textContent = "the server does not answer";
});
recallSettings();
if (innerWidth > 1100) for (const id of ["open-conversations", "open-panel"]) $(id).click();
draw();
greet();
