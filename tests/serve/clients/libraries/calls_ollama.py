"""ollama's own client: texts, calls whole and streamed, JSON by a schema, a context, and the model."""

import os

from ollama import Client
from pydantic import BaseModel


class City(BaseModel):
    name: str
    population: int


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
      city: Its name
    """
    return f"21 in {city}"


SAID, MODEL = "Hello from the mill.", "words"
HELLO, WEATHER = ([{"role": "user", "content": text}] for text in ("Hello", "The weather in Paris?"))
client = Client(host=os.environ["URL"])

done = client.chat(MODEL, HELLO)
assert (done.message.content, done.done, done.done_reason) == (SAID, True, "stop")
assert done.eval_count > 1 and done.total_duration > done.eval_duration > 0
assert "".join(part.message.content for part in client.chat(MODEL, HELLO, stream=True)) == SAID
assert client.chat(MODEL, HELLO, logprobs=True, top_logprobs=2).logprobs[0].top_logprobs

done = client.chat(MODEL, WEATHER, tools=[get_weather])
(call,) = done.message.tool_calls
assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
parts = list(client.chat(MODEL, WEATHER, tools=[get_weather], stream=True))
assert [each.function for part in parts for each in part.message.tool_calls or ()] == [call.function]
result = {"role": "tool", "content": "21", "tool_name": "get_weather"}
assert client.chat(MODEL, [*WEATHER, done.message, result], tools=[get_weather]).message.content == "It is 21 degrees."

asked = [{"role": "user", "content": "Paris as an object, please."}]
done = client.chat(MODEL, asked, format=City.model_json_schema(), options={"temperature": 0, "num_ctx": 2048})
assert City.model_validate_json(done.message.content) == City(name="Paris", population=2_100_000)

first = client.generate(MODEL, "Hello", system="Be brief.", options={"num_predict": 20}, keep_alive="10m")
assert first.response == SAID and first.context
parts = list(client.generate(MODEL, "Hello", context=first.context, stream=True))
assert "".join(part.response for part in parts) == SAID and parts[-1].context[: len(first.context)] == first.context

assert client.list().models[0].model == client.ps().models[0].model == f"{MODEL}:latest"
assert "tools" in client.show(MODEL).capabilities
assert [part.status for part in client.pull(MODEL, stream=True)][-1] == client.pull(MODEL).status == "success"
assert client.generate(MODEL).done_reason == "load" and client.generate(MODEL, keep_alive=0).done_reason == "unload"
