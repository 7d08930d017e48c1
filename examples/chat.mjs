// A chat answer, shown as it is written. npm install openai; OPENAI_BASE_URL and OPENAI_API_KEY say where and who.
import OpenAI from "openai";

const { OPENAI_BASE_URL: baseURL = "http://127.0.0.1:8000/v1", OPENAI_API_KEY: apiKey = "none" } = process.env;
const client = new OpenAI({ baseURL, apiKey });
const [{ id: model }] = (await client.models.list()).data;

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: "How do plants make food?" }],
  max_tokens: 60,
  stream: true,
});
for await (const { choices } of stream) process.stdout.write(choices[0].delta.content ?? "");
process.stdout.write("\n");
