// A stream that its reader ends after a few words: the server stops at once and computes nothing more of it.
import OpenAI from "openai";

const { OPENAI_BASE_URL: baseURL = "http://127.0.0.1:8000/v1", OPENAI_API_KEY: apiKey = "none" } = process.env;
const client = new OpenAI({ baseURL, apiKey });
const [{ id: model }] = (await client.models.list()).data;

const controller = new AbortController();
const asked = { model, prompt: "Once upon a time", max_tokens: 80, stream: true };
const stream = await client.completions.create(asked, { signal: controller.signal });
let words = 0;
for await (const { choices } of stream) {
  process.stdout.write(choices[0].text);
  words += choices[0].text.trim().split(/\s+/).length;
  if (words >= 5) controller.abort();
}
process.stdout.write(" ...\n");
