"""litellm: a text, calls of tools whole and streamed, JSON by a schema, responses."""

import asyncio
import json
import os

import litellm

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"}},
    "required": ["name", "population"],
    "additionalProperties": False,
}
WAY = {"api_base": f"{os.environ['URL']}/v1", "api_key": "none", "num_retries": 0}
MODEL = "openai/words"
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = [{"role": "user", "content": "The weather in Paris?"}]

done = litellm.completion(MODEL, HELLO, **WAY)
assert done.choices[0].message.content == "Hello from the mill."
assert done.choices[0].finish_reason == "stop" and done.usage.completion_tokens > 1
chunks = list(litellm.completion(MODEL, HELLO, stream=True, **WAY))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello from the mill."

done = litellm.completion(MODEL, WEATHER, tools=[TOOL], **WAY)
(call,) = done.choices[0].message.tool_calls
assert done.choices[0].finish_reason == "tool_calls" and call.function.name == "get_weather"
assert json.loads(call.function.arguments) == {"city": "Paris"}
chunks = list(litellm.completion(MODEL, WEATHER, tools=[TOOL], stream=True, **WAY))
whole = litellm.stream_chunk_builder(chunks)
assert whole.choices[0].message.tool_calls[0].function.arguments == call.function.arguments
said = [*WEATHER, done.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "21"}]
done = litellm.completion(MODEL, said, tools=[TOOL], **WAY)
assert done.choices[0].message.content == "It is 21 degrees."

form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
asked = [{"role": "user", "content": "Paris as an object, please."}]
done = asyncio.run(litellm.acompletion(MODEL, asked, response_format=form, **WAY))
assert json.loads(done.choices[0].message.content) == {"name": "Paris", "population": 2_100_000}

answer = litellm.responses(model=MODEL, input="Hello", **WAY)
assert answer.output_text == "Hello from the mill."
