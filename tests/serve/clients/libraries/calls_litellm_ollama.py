"""litellm over Ollama's API: both of its providers, which do not say that a body is JSON."""

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
FORM = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
WAY = {"api_base": os.environ["URL"], "num_retries": 0}
HELLO = [{"role": "user", "content": "Hello"}]
WEATHER = [{"role": "user", "content": "The weather in Paris?"}]
ASKED = [{"role": "user", "content": "Paris as an object, please."}]
MORE = {"max_tokens": 50, "temperature": 0.2, "top_p": 0.9, "seed": 3, "stop": ["zzz"]}

for model in ("ollama_chat/words", "ollama/words"):
    done = litellm.completion(model, HELLO, **MORE, **WAY)
    assert done.choices[0].message.content == "Hello from the mill." and done.usage.completion_tokens > 1
    chunks = list(litellm.completion(model, HELLO, stream=True, **WAY))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello from the mill."
    done = litellm.completion(model, ASKED, response_format=FORM, **WAY)
    assert json.loads(done.choices[0].message.content) == {"name": "Paris", "population": 2_100_000}

model = "ollama_chat/words"
done = litellm.completion(model, WEATHER, tools=[TOOL], **WAY)
(call,) = done.choices[0].message.tool_calls
assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}
whole = litellm.stream_chunk_builder(list(litellm.completion(model, WEATHER, tools=[TOOL], stream=True, **WAY)))
assert json.loads(whole.choices[0].message.tool_calls[0].function.arguments) == {"city": "Paris"}
said = [*WEATHER, done.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": call.id, "content": "21"}]
assert litellm.completion(model, said, tools=[TOOL], **WAY).choices[0].message.content == "It is 21 degrees."
