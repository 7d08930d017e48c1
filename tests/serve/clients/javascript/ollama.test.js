// Ollama's JavaScript client, and Vercel's `ai` with ollama-ai-provider-v2, against the server that test_libraries.py starts.
import assert from "node:assert/strict";
import { test } from "node:test";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";

const client = new Ollama({ host: process.env.URL });
const asked = (content) => ({ model: "words", messages: [{ role: "user", content }] });
const SAID = "Hello from the mill.";
const PARIS = { name: "Paris", population: 2_100_000 };
const parameters = { type: "object", required: ["city"], properties: { city: { type: "string", description: "Its name" } } };
const tools = [{ type: "function", function: { name: "get_weather", description: "The weather of a city.", parameters } }];

test("a text, whole and streamed", async () => {
  assert.equal((await client.chat(asked("Hello"))).message.content, SAID);
  let joined = "", last;
  for await (last of await client.chat({ ...asked("Hello"), stream: true })) joined += last.message.content;
  assert.equal(joined, SAID);
  assert.ok(last.done && last.done_reason === "stop" && last.eval_duration > 0);
});

test("a call, whole and streamed, and its result", async () => {
  const body = { ...asked("The weather in Paris?"), tools };
  const { message } = await client.chat(body);
  assert.deepEqual(message.tool_calls.map((call) => call.function.arguments), [{ city: "Paris" }]);
  const calls = [];
  for await (const part of await client.chat({ ...body, stream: true })) calls.push(...(part.message.tool_calls ?? []));
  assert.deepEqual(calls.map((call) => call.function.name), ["get_weather"]);
  const result = { role: "tool", content: "21", tool_name: "get_weather" };
  const done = await client.chat({ ...body, messages: [...body.messages, message, result] });
  assert.equal(done.message.content, "It is 21 degrees.");
});

test("JSON by a schema", async () => {
  const format = { type: "object", properties: { name: { type: "string" }, population: { type: "integer" } }, required: ["name", "population"] };
  const done = await client.chat({ ...asked("Paris as an object, please."), format });
  assert.deepEqual(JSON.parse(done.message.content), PARIS);
});

test("a context goes on", async () => {
  const { context, response } = await client.generate({ model: "words", prompt: "Hello" });
  assert.equal(response, SAID);
  let joined = "";
  for await (const part of await client.generate({ model: "words", prompt: "Hello", context, stream: true })) joined += part.response;
  assert.equal(joined, SAID);
});

test("the model", async () => {
  assert.equal((await client.list()).models[0].name, "words:latest");
  assert.equal((await client.ps()).models[0].model, "words:latest");
  assert.ok((await client.show({ model: "words" })).capabilities.includes("tools"));
  let last;
  for await (last of await client.pull({ model: "words", stream: true }));
  assert.equal(last.status, "success");
});

test("Vercel's ai", async () => {
  const model = createOllama({ baseURL: `${process.env.URL}/api` })("words");
  const ask = { model, maxRetries: 0 };
  assert.equal((await generateText({ ...ask, prompt: "Hello" })).text, SAID);
  const get_weather = tool({ description: "The weather", inputSchema: z.object({ city: z.string() }), execute: async () => "21" });
  const more = { ...ask, prompt: "The weather in Paris?", tools: { get_weather }, stopWhen: stepCountIs(3) };
  assert.equal((await generateText(more)).text, "It is 21 degrees.");
  let joined = "";
  for await (const piece of streamText(more).textStream) joined += piece;
  assert.equal(joined, "It is 21 degrees.");
  const schema = z.object({ name: z.string(), population: z.number().int() });
  assert.deepEqual((await generateObject({ ...ask, schema, prompt: "Paris as an object, please." })).object, PARIS);
});
