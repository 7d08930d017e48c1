"""langchain-ollama: a text, calls of tools whole and streamed, objects by a schema, and a completion."""

import os

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaLLM
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    population: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"21 in {city}"


SAID, CALL = "Hello from the mill.", ("get_weather", {"city": "Paris"})
way = {"model": "words", "base_url": os.environ["URL"]}
model = ChatOllama(**way, validate_model_on_init=True, num_ctx=2048, temperature=0, keep_alive="5m")
assert model.invoke("Hello").text == SAID
assert "".join(piece.text for piece in model.stream("Hello")) == SAID

bound, said = model.bind_tools([get_weather]), [HumanMessage("The weather in Paris?")]
answer = bound.invoke(said)
assert [(call["name"], call["args"]) for call in answer.tool_calls] == [CALL]
pieces = list(bound.stream(said))
joined = pieces[0]
for piece in pieces[1:]:
    joined += piece
assert [(call["name"], call["args"]) for call in joined.tool_calls] == [CALL]
assert bound.invoke([*said, answer, get_weather.invoke(answer.tool_calls[0])]).text == "It is 21 degrees."

for method in ("json_schema", "function_calling"):
    found = model.with_structured_output(City, method=method).invoke("Paris as an object, please.")
    assert found == City(name="Paris", population=2_100_000), method
assert OllamaLLM(**way).invoke("Hello") == SAID
