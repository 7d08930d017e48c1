// Conversations to files and back.

import { element } from "./element.mjs";
import { readConversation, write } from "./record.mjs";

const FORMAT = "tokenmill.conversations";

export function download(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export function exportConversations(conversations) {
  const written = conversations.filter((one) => one.leaf !== null).map((one) => JSON.parse(write(one)));
  const name = written.length === 1 ? written[0].title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) : `conversations-${new Date().toISOString().slice(0, 10)}`;
  download(`${name || "conversation"}.json`, `${JSON.stringify({ format: FORMAT, conversations: written }, null, 1)}\n`);
}

// The conversations of a file, and how many of its entries are none. The server keeps none of them.
export async function readFile(file) {
  const found = await file.text().then(JSON.parse).catch(() => null);
  const list = found?.format === FORMAT && Array.isArray(found.conversations) ? found.conversations : null;
  if (list === null) throw new Error(`${file.name} is no file that this page has exported`);
  const read = list.map(readConversation), good = read.filter((one) => one !== null);
  for (const one of good) one.kept = false;
  return { good, numBad: read.length - good.length };
}
