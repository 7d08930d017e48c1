// The page: what its controls do.

import { Answers } from "./answers.mjs";
import { ask, setKey } from "./api.mjs";
import { CacheView } from "./cache.mjs";
import { ContextNote, firstThatFits, isFull } from "./context.mjs";
import { addTurn, fork, goTo, hasEnded, messages, newConversation, read, rename } from "./conversation.mjs";
import { isComposing } from "./element.mjs";
import { exportConversations, readFile } from "./files.mjs";
import { ConversationList, titleOf } from "./list.mjs";
import { Models } from "./models.mjs";
import { hideTip } from "./probabilities.mjs";
import { keyOfServer, sampling, systemMessage, watch } from "./settings.mjs";
import { Store, storage, tabStorage } from "./store.mjs";
import { TurnList } from "./turns.mjs";

const $ = (id) => document.getElementById(id);
const OPEN = "tokenmill.open"; // what this tab shows, and what is typed in it, over a reload

const named = new Map(); // id of an answer on the server → its conversation
let isGone = false, isBeingHeard = false;
const models = new Models(() => { draw(); cache.look(); });

const store = new Store({ changed: heard, removed: removedElsewhere }, tellOfRoom);
let current = store.conversations.get(recalled().id) ?? (recalled().message ? null : newest()) ?? newConversation();

const answers = new Answers({ grown, ended, named: (id, conversation) => named.set(id, conversation) });
const turns = new TurnList($("turns"), {
  edit: (turn, text) => send(text, turn.parent),
  retry: (turn) => answer(turn.parent),
  goOn: (turn) => answer(turn.parent, turn),
  leaveOut,
  fork: (turn) => adopt(fork(current, turn)),
  go: (turn) => { goTo(current, turn); store.save(current); draw(); },
  isFull: (turn) => isFull(current, turn, models.limit),
});
const list = new ConversationList($("conversation-list"), {
  open, keep, remove,
  rename: (one, text) => { rename(one, text); store.save(one); draw(); },
  save: (one) => exportConversations([one]),
  removeUnreadable: (key) => { if (confirm("Delete what cannot be read?")) store.removeUnreadable(key); draw(); },
}, (one) => answers.isRunning(one));
const context = new ContextNote($("context"));

// ---- conversations

function newest() {
  return [...store.conversations.values()].sort((one, other) => other.begun - one.begun)[0];
}

function adopt(made) {
  store.add(made);
  store.save(made);
  open(made);
}

function open(conversation) {
  current = conversation;
  if (conversation.kept) ask(`/v1/sessions/${conversation.id}/restore`, {}).catch(() => {}); // its rows, if they are still there
  if (innerWidth < 832 && !$("conversations").hidden) $("open-conversations").click(); // it lies over the conversation
  notice("");
  draw();
  $("message").focus();
}

function draw() {
  const isBusy = answers.isRunning(current);
  turns.draw(current, isBusy);
  list.draw(store, current);
  $("send").hidden = isBusy;
  $("stop").hidden = !isBusy;
  document.title = current.leaf === null ? "tokenmill" : `${titleOf(current)} · tokenmill`;
  const last = current.turns[current.leaf];
  if (!last || hasEnded(last) || !isBeingHeard) context.show(current, systemMessage(), models);
}

// Another tab has written something. While it writes an answer, that is each second.
function heard(conversation) {
  isBeingHeard = true;
  if (conversation === current) draw();
  else list.draw(store, current);
  isBeingHeard = false;
}

function removedElsewhere(conversation) {
  answers.stop(conversation);
  if (conversation === current) {
    current = newest() ?? newConversation();
    draw();
    notice(`“${titleOf(conversation)}” was deleted in another tab.`);
  }
  list.draw(store, current);
}

function remove(one) {
  if (!confirm(`Delete “${titleOf(one)}”?`)) return;
  answers.stop(one);
  if (one.kept) ask(`/v1/sessions/${one.id}/erase`, {}).catch(() => {});
  store.remove(one);
  if (one === current) current = newest() ?? newConversation();
  draw();
}

async function keep(one) {
  try {
    if (one.kept) await ask(`/v1/sessions/${one.id}/erase`, {});
    else await ask(`/v1/sessions/${one.id}/save`, { model: models.id, messages: messages(read(one, one.leaf), systemMessage()) }, 600);
    one.kept = !one.kept;
  } catch (error) {
    if (error.status === 404) one.kept = false;
    notice(error.message);
  }
  one.changed = Date.now();
  store.save(one);
  draw();
}

async function importFiles(files) {
  notice("");
  for (const file of files) {
    try {
      const { good, numBad } = await readFile(file);
      for (const one of good) store.touch(store.include(one));
      if (numBad) notice(`${file.name}: ${numBad} of ${good.length + numBad} entries are no conversations, and were left out.`);
    } catch (error) {
      notice(error.message);
    }
  }
  store.flush();
  if (current.leaf === null) current = newest() ?? current;
  draw();
}

// ---- questions and answers

// What is set for a request; null, and said, if some of it cannot be sent.
function requestSettings() {
  try {
    return sampling();
  } catch (error) {
    if (!error.field) throw error;
    if ($("panel").hidden) $("open-panel").click();
    error.field.closest("details").open = true;
    error.field.focus();
    notice(error.message);
    return null;
  }
}

// Ask something below a turn. Returns whether it was asked.
function send(text, parent) {
  if (answers.isRunning(current) || requestSettings() === null) return false;
  if (current.leaf === null) store.add(current);
  answer(addTurn(current, parent, "user", text).id);
  return true;
}

// Answer the question `asked`, from the beginning or going on where the answer `from` ends. since: see conversation.mjs.
function answer(asked, from = null, since = undefined) {
  const conversation = current, settings = requestSettings();
  if (settings === null || answers.isRunning(conversation)) return;
  notice("");
  const turn = addTurn(conversation, asked, "assistant", from?.content ?? "");
  if (from?.thinking) turn.thinking = from.thinking;
  if (since) turn.since = since;
  else if (from?.since) turn.since = from.since;
  if (!from?.content || from.tokens?.length) turn.tokens = [...(from?.tokens ?? [])]; // of all its text, or none
  const said = read(conversation, turn.id).slice(0, from ? undefined : -1), more = from ? { add_generation_prompt: false, continue_final_message: true } : {};
  answers.write(conversation, turn, { model: models.id, messages: messages(said, systemMessage()), stream: true, stream_options: { include_usage: true }, return_progress: true, ...more, ...settings });
  store.save(conversation);
  draw();
  $("turns").scrollTop = $("turns").scrollHeight;
}

async function leaveOut(turn) {
  const from = turn.content ? turn : null;
  try {
    const since = await firstThatFits(current, from ? turn.id : turn.parent, systemMessage(), models);
    if (since) answer(turn.parent, from, since.id);
  } catch (error) {
    notice(error.message);
  }
}

let isDue = false;
function grown(conversation, turn) {
  store.touch(conversation);
  if (conversation !== current || isDue) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    if (turn.isRunning && conversation === current) turns.update(turn);
  });
}

function ended(conversation, turn) {
  store.save(conversation);
  if (turn.code === "invalid_api_key") wantKey();
  draw();
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("message").value.trim();
  if (text && send(text, current.leaf)) $("message").value = "";
});
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("stop").addEventListener("click", () => answers.stop(current));
$("new").addEventListener("click", () => open(current.leaf === null ? current : newConversation()));
$("export").addEventListener("click", () => exportConversations([...store.conversations.values()]));
$("import").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async ({ target }) => { await importFiles([...target.files]); target.value = ""; });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || isComposing(event)) return;
  answers.stop(current);
  hideTip();
});
$("turns").addEventListener("scroll", hideTip);

// ---- what is told, what is open, and the server

function notice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

function tellOfRoom() {
  const titles = store.unsaved.map((one) => `“${titleOf(one)}”`).join(", "), why = storage ? "the browser has no room for more: export and delete some" : "the browser is set to keep nothing";
  $("unsaved").hidden = !titles;
  $("unsaved").textContent = titles && `${titles} will be lost when this tab is closed, since ${why}.`;
  list.draw(store, current);
}
addEventListener("beforeunload", (event) => store.unsaved.length && event.preventDefault());

function recalled() {
  try {
    return JSON.parse(tabStorage?.getItem(OPEN) ?? "{}") ?? {};
  } catch {
    return {};
  }
}
addEventListener("pagehide", () => {
  try {
    tabStorage?.setItem(OPEN, JSON.stringify({ id: current.id, message: $("message").value }));
  } catch { /* no room: the newest is open then */ }
});

function toggle(button, box) {
  box.hidden = !box.hidden;
  button.setAttribute("aria-expanded", String(!box.hidden));
}
$("open-conversations").addEventListener("click", ({ currentTarget }) => toggle(currentTarget, $("conversations")));
$("open-panel").addEventListener("click", ({ currentTarget }) => { toggle(currentTarget, $("panel")); cache.look(); });

function wantKey() {
  notice("This server wants a key: give it under ⚙, This page.");
  if ($("panel").hidden) $("open-panel").click();
  $("key").closest("details").open = true;
}

async function greet() {
  try {
    models.take((await ask("/v1/models")).data);
    notice("");
    draw();
  } catch (error) {
    if (error.status === 401) wantKey();
    else if (error.status) notice(error.message);
  }
}

const cache = new CacheView((path) => models.about(path), (id) => (named.has(id) ? titleOf(named.get(id)) : undefined), (seen, error) => {
  const isBack = isGone && !error;
  isGone = error?.status === 0;
  $("load").textContent = seen ? `${seen.running} running, ${seen.waiting} waiting` : "";
  $("gone").hidden = !isGone;
  if (isGone) $("gone").textContent = `${error.message[0].toUpperCase()}${error.message.slice(1)}. What stands here stays; this page goes on when it is back.`;
  if (isBack || (seen && !models.limit)) greet(); // it may be another model
});
watch((id) => {
  document.documentElement.dataset.theme = $("theme").value;
  setKey(keyOfServer());
  if (id === "key") greet();
}, () => notice("The browser has no room for these settings: they hold until this tab is closed."));
document.documentElement.dataset.theme = $("theme").value;
setKey(keyOfServer());
$("message").value = recalled().message ?? "";
if (innerWidth > 1100) for (const id of ["open-conversations", "open-panel"]) $(id).click();
draw();
greet();
