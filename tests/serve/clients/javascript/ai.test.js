// Vercel's `ai` with @ai-sdk/openai-compatible against the server that test_libraries.py starts. Run by `node --test`.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "own", baseURL: `${process.env.URL}/v1`, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
const model = provider("words");
const PARIS = { name: "Paris", population: 2_100_000 };
const schema = z.object({ name: z.string(), population: z.number().int() });
const tools = () => ({
  get_weather: tool({ description: "The weather of a city.", inputSchema: z.object({ city: z.string() }), execute: async ({ city }) => `21 in ${city}` }),
});
const ASK = { model, maxRetries: 0 };

test("a text, whole and streamed", async () => {
  const { text, finishReason, usage } = await generateText({ ...ASK, prompt: "Hello" });
  assert.equal(text, "Hello from the mill.");
  assert.equal(finishReason, "stop");
  assert.ok(usage.outputTokens > 1);
  const stream = streamText({ ...ASK, prompt: "Hello" });
  let joined = "";
  for await (const piece of stream.textStream) joined += piece;
  assert.equal(joined, text);
  assert.equal((await stream.usage).outputTokens, usage.outputTokens);
});

test("a tool is called, and its result is read", async () => {
  const asked = { ...ASK, prompt: "The weather in Paris?", stopWhen: stepCountIs(3) };
  const { steps, text } = await generateText({ ...asked, tools: tools() });
  assert.deepEqual(steps[0].toolCalls.map(({ toolName, input }) => [toolName, input]), [["get_weather", { city: "Paris" }]]);
  assert.equal(steps[0].finishReason, "tool-calls");
  assert.equal(text, "It is 21 degrees.");
});

test("the same, streamed", async () => {
  const stream = streamText({ ...ASK, prompt: "The weather in Paris?", stopWhen: stepCountIs(3), tools: tools() });
  const kinds = [];
  for await (const part of stream.fullStream) kinds.push(part.type);
  assert.ok(kinds.includes("tool-call") && kinds.includes("tool-result") && !kinds.includes("error"), kinds.join());
  assert.equal(await stream.text, "It is 21 degrees.");
});

test("an object by its schema, whole and streamed", async () => {
  const asked = { ...ASK, prompt: "Paris as an object, please.", schema };
  assert.deepEqual((await generateObject(asked)).object, PARIS);
  const { partialObjectStream, object } = streamObject(asked);
  let last;
  for await (const part of partialObjectStream) last = part;
  assert.deepEqual(last, PARIS);
  assert.deepEqual(await object, PARIS);
});
