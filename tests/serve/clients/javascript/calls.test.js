// OpenAI's JavaScript client against servers that test_javascript.py starts. Run by `node --test`.
//
// OPEN has no key, LOCKED wants "one-key", FULL has no place left, DRAINING is shutting down. HELD makes a few steps of
// a text and then waits until somebody leaves.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { OPEN, LOCKED, FULL, DRAINING, HELD } = process.env;
const MODEL = "words";

const clientOf = (url, more = {}) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, ...more });
const client = clientOf(OPEN);

const ASK = { model: MODEL, prompt: "w1 w2", max_tokens: 12, temperature: 0 };
const MESSAGES = [
  { role: "system", content: "w1 w2" },
  { role: "user", content: "w3 w4" },
];
const CHAT = { model: MODEL, messages: MESSAGES, max_tokens: 8, temperature: 0 };
const SAMPLED = { temperature: 0.9, seed: 3, n: 3 };

const complete = (more) => client.completions.create({ ...ASK, ...more });
const chat = (more) => client.chat.completions.create({ ...CHAT, ...more });
const textOf = async (more) => (await complete(more)).choices[0].text;

async function all(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

/** The texts of all continuations of a stream, by their index. */
function joined(chunks, count = 1) {
  const texts = Array(count).fill("");
  for (const { choices } of chunks)
    for (const { index, text, delta } of choices) texts[index] += text ?? delta.content ?? "";
  return texts;
}

/** The error that a call ends with. */
async function failure(call, kind) {
  const error = await call.then(
    () => assert.fail("this call should fail"),
    (error) => error,
  );
  assert.ok(error instanceof kind, `${error?.constructor.name}: ${error?.message}`);
  return error;
}

// ---- models

test("models are listed", async () => {
  const models = await all(client.models.list());
  assert.deepEqual(models.map(({ id, object }) => [id, object]), [[MODEL, "model"]]);
});

test("a model is retrieved by its name", async () => {
  assert.equal((await client.models.retrieve(MODEL)).owned_by, "tokenmill");
});

// ---- completions

test("a completion", async () => {
  const done = await complete();
  assert.equal(done.object, "text_completion");
  assert.match(done.id, /^cmpl-/);
  assert.equal(done.choices[0].finish_reason, "length");
  assert.equal(done.choices[0].text.trim().split(" ").length, 12);
});

test("usage", async () => {
  const { usage } = await complete();
  assert.deepEqual([usage.prompt_tokens, usage.completion_tokens, usage.total_tokens], [2, 12, 14]);
  assert.equal(typeof usage.prompt_tokens_details.cached_tokens, "number");
});

test("a stream has the same text", async () => {
  const chunks = await all(complete({ stream: true }));
  assert.deepEqual(joined(chunks), [await textOf()]);
  assert.equal(new Set(chunks.map(({ id, created }) => `${id} ${created}`)).size, 1);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
});

test("usage of a stream", async () => {
  const chunks = await all(complete({ stream: true, stream_options: { include_usage: true } }));
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, 12);
  assert.ok(chunks.every(({ usage }) => usage === null));
});

test("several continuations, whole and streamed", async () => {
  const texts = (await complete(SAMPLED)).choices.map(({ text }) => text);
  assert.equal(texts.length, 3);
  assert.deepEqual(joined(await all(complete({ ...SAMPLED, stream: true })), 3), texts);
});

test("several prompts, whole and streamed", async () => {
  const asked = { prompt: ["w1", "w2 w3"], n: 2, temperature: 0.8, seed: 1 };
  const done = await complete(asked);
  assert.deepEqual(done.choices.map(({ index }) => index), [0, 1, 2, 3]);
  assert.deepEqual(joined(await all(complete({ ...asked, stream: true })), 4), done.choices.map(({ text }) => text));
});

test("prompts as token ids", async () => {
  assert.equal(await textOf({ prompt: [1, 2] }), await textOf());
  assert.equal((await complete({ prompt: [[1, 2], [3]] })).choices.length, 2);
});

test("log-probabilities, whole and streamed", async () => {
  const { logprobs } = (await complete({ logprobs: 2 })).choices[0];
  assert.equal(logprobs.tokens.length, 12);
  assert.ok(logprobs.token_logprobs.every((value) => value <= 0));
  assert.ok(logprobs.top_logprobs.every((top) => Object.keys(top).length === 2));
  const chunks = await all(complete({ logprobs: 2, stream: true }));
  assert.deepEqual(chunks.flatMap(({ choices }) => choices[0].logprobs?.tokens ?? []), logprobs.tokens);
});

test("a stop text, whole and streamed", async () => {
  const text = await textOf();
  const stop = text.trim().split(" ")[4];
  const [choice] = (await complete({ stop })).choices;
  assert.deepEqual([choice.text, choice.finish_reason], [text.slice(0, text.indexOf(stop)), "stop"]);
  assert.deepEqual(joined(await all(complete({ stop: [stop, "never"], stream: true }))), [choice.text]);
});

test("a seed gives the same text again, and another one another", async () => {
  const sampled = { temperature: 1, max_tokens: 40 };
  assert.equal(await textOf({ ...sampled, seed: 7 }), await textOf({ ...sampled, seed: 7 }));
  assert.notEqual(await textOf({ ...sampled, seed: 7 }), await textOf({ ...sampled, seed: 8 }));
});

test("echo", async () => {
  const wanted = `w1 w2${await textOf()}`;
  assert.equal(await textOf({ echo: true }), wanted);
  assert.deepEqual(joined(await all(complete({ echo: true, stream: true }))), [wanted]);
});

test("echo with log-probabilities of the prompt", async () => {
  const [{ logprobs, text }] = (await complete({ echo: true, logprobs: 1, max_tokens: 1 })).choices;
  assert.deepEqual(logprobs.tokens.slice(0, 2), ["w1", "w2"]);
  assert.equal(logprobs.token_logprobs[0], null);
  assert.equal(text.slice(logprobs.text_offset[2]).trim(), logprobs.tokens[2]);
});

test("a bias chooses the token", async () => {
  assert.match(await textOf({ logit_bias: { 7: 100 }, max_tokens: 3 }), /w7 w7 w7/);
});

test("fields of the open engines, as they are", async () => {
  assert.equal((await complete({ top_k: 1, temperature: 1, min_tokens: 3 })).choices[0].text, await textOf());
});

// ---- chat

test("a chat answer", async () => {
  const done = await chat();
  assert.equal(done.object, "chat.completion");
  assert.equal(done.choices[0].message.role, "assistant");
  assert.equal(done.choices[0].message.content.trim().split(" ").length, 8);
  assert.equal(done.usage.completion_tokens, 8);
});

test("a chat stream begins with the role and ends with the reason", async () => {
  const chunks = await all(chat({ stream: true }));
  assert.deepEqual(chunks[0].choices[0].delta, { role: "assistant", content: "" });
  assert.deepEqual(joined(chunks), [(await chat()).choices[0].message.content]);
  assert.deepEqual(chunks.at(-1).choices[0].delta, {});
  assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
});

test("several chat answers in a stream", async () => {
  const texts = (await chat(SAMPLED)).choices.map(({ message }) => message.content);
  assert.deepEqual(joined(await all(chat({ ...SAMPLED, stream: true })), 3), texts);
});

test("usage of a chat stream", async () => {
  const chunks = await all(chat({ stream: true, stream_options: { include_usage: true } }));
  assert.equal(chunks.at(-1).usage.completion_tokens, 8);
});

test("the client's helper for streams", async () => {
  const stream = client.chat.completions.stream(CHAT);
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const done = await stream.finalChatCompletion();
  assert.equal(done.choices[0].message.content, text);
  assert.equal(text, (await chat()).choices[0].message.content);
});

test("log-probabilities of a chat, whole and streamed", async () => {
  const { content } = (await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs;
  assert.ok(content.length === 8 && content.every(({ top_logprobs }) => top_logprobs.length === 2));
  const chunks = await all(chat({ logprobs: true, top_logprobs: 2, stream: true }));
  assert.deepEqual(chunks.flatMap(({ choices }) => choices[0].logprobs?.content ?? []), content);
});

test("a stop text of a chat", async () => {
  const text = (await chat()).choices[0].message.content;
  const stop = text.trim().split(" ")[3];
  const [{ message, finish_reason }] = (await chat({ stop })).choices;
  assert.deepEqual([message.content, finish_reason], [text.slice(0, text.indexOf(stop)), "stop"]);
});

test("max_completion_tokens", async () => {
  assert.equal((await chat({ max_tokens: undefined, max_completion_tokens: 3 })).usage.completion_tokens, 3);
});

test("messages of parts", async () => {
  const messages = [MESSAGES[0], { role: "user", content: [{ type: "text", text: "w3 w4" }] }];
  assert.deepEqual((await chat({ messages })).choices, (await chat()).choices);
});

test("an id of the request", async () => {
  assert.match((await chat())._request_id, /^req-/);
  const { response } = await complete().withResponse();
  assert.match(response.headers.get("x-request-id"), /^req-/);
});

// ---- errors

test("400 names the field", async () => {
  const error = await failure(complete({ temperature: -1 }), OpenAI.BadRequestError);
  assert.deepEqual([error.status, error.param, error.type], [400, "temperature", "invalid_request_error"]);
});

test("400 for what is not served", async () => {
  const error = await failure(complete({ suffix: "w2" }), OpenAI.BadRequestError);
  assert.deepEqual([error.param, error.code], ["suffix", "unsupported_parameter"]);
});

test("400 for a prompt that does not fit, before a stream begins", async () => {
  const error = await failure(complete({ prompt: Array(100).fill(1), stream: true }), OpenAI.BadRequestError);
  assert.equal(error.code, "context_length_exceeded");
});

test("401 without a key that the server knows", async () => {
  const error = await failure(clientOf(LOCKED).models.list(), OpenAI.AuthenticationError);
  assert.deepEqual([error.status, error.code], [401, "invalid_api_key"]);
  const known = clientOf(LOCKED, { apiKey: "one-key" });
  assert.equal((await known.completions.create(ASK)).choices[0].text, await textOf());
});

test("404 for another model", async () => {
  const error = await failure(chat({ model: "gpt-4" }), OpenAI.NotFoundError);
  assert.equal(error.code, "model_not_found");
  await failure(client.models.retrieve("gpt-4"), OpenAI.NotFoundError);
});

test("404 for what there is not", async () => {
  await failure(client.moderations.create({ input: "w1" }), OpenAI.NotFoundError);
});

test("embeddings, which this client wants in base64", async () => {
  const input = ["w1 w2", "w3"];
  const { data, usage } = await client.embeddings.create({ model: MODEL, input });
  const { data: floats } = await client.embeddings.create({ model: MODEL, input, encoding_format: "float" });
  assert.deepEqual(data.map(({ index }) => index), [0, 1]);
  assert.ok(usage.prompt_tokens > 0);
  for (const [number, { embedding }] of data.entries()) {
    assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-5);
    assert.ok(embedding.every((value, place) => Math.abs(value - floats[number].embedding[place]) < 1e-6));
  }
});

test("413 for a body that is too large", async () => {
  const error = await failure(clientOf(LOCKED, { apiKey: "one-key" }).completions.create({ ...ASK, prompt: "w1 ".repeat(9000) }), OpenAI.APIError);
  assert.equal(error.status, 413);
});

test("429 when the queue is full, with the time to wait", async () => {
  for (const stream of [false, true]) {
    const error = await failure(clientOf(FULL).completions.create({ ...ASK, stream }), OpenAI.RateLimitError);
    assert.deepEqual([error.status, error.code], [429, "queue_full"]);
    assert.match(error.headers.get("retry-after"), /^[1-9][0-9]*$/); // seconds, by how long the one that runs has run
  }
});

test("503 when the server is shutting down", async () => {
  const error = await failure(clientOf(DRAINING).completions.create(ASK), OpenAI.InternalServerError);
  assert.deepEqual([error.status, error.code], [503, "shutting_down"]);
});

test("no server", async () => {
  await failure(clientOf("http://127.0.0.1:1").models.list(), OpenAI.APIConnectionError);
});

// ---- cancellation: test_javascript.py checks that the server has forgotten each of these

test("an AbortController ends a stream", async () => {
  const controller = new AbortController();
  const stream = await clientOf(HELD).completions.create({ ...ASK, max_tokens: 90, stream: true }, { signal: controller.signal });
  for await (const _ of stream) controller.abort();
});

test("leaving the loop ends a stream", async () => {
  for await (const _ of await clientOf(HELD).chat.completions.create({ ...CHAT, max_tokens: 80, stream: true })) break;
});

test("an AbortController ends a request", async () => {
  const controller = new AbortController();
  setTimeout(() => controller.abort(), 300);
  const asked = clientOf(HELD).completions.create({ ...ASK, max_tokens: 90 }, { signal: controller.signal });
  await failure(asked, OpenAI.APIUserAbortError);
});

test("a client's timeout ends a request", async () => {
  const hasty = clientOf(HELD, { timeout: 300 });
  await failure(hasty.chat.completions.create({ ...CHAT, max_tokens: 80 }), OpenAI.APIConnectionTimeoutError);
});
