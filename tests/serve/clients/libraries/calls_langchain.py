"""langchain-openai: a text, calls of tools whole and streamed, objects by a schema, and responses."""

import os

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class City(BaseModel):
    """A city."""

    name: str
    population: int


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"21 in {city}"


PARIS = City(name="Paris", population=2_100_000)
HELLO, ASKED = "Hello", "Paris as an object, please."
for responses in (False, True):
    way = {"base_url": f"{os.environ['URL']}/v1", "api_key": "none", "max_retries": 0}
    model = ChatOpenAI(model="words", use_responses_api=responses, **way)
    assert model.invoke(HELLO).text == "Hello from the mill."
    assert "".join(piece.text for piece in model.stream(HELLO)) == "Hello from the mill."

    bound = model.bind_tools([get_weather])
    said = [HumanMessage("The weather in Paris?")]
    answer = bound.invoke(said)
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("get_weather", {"city": "Paris"})]
    pieces = list(bound.stream(said))
    joined = pieces[0]
    for piece in pieces[1:]:
        joined += piece
    assert [(call["name"], call["args"]) for call in joined.tool_calls] == [("get_weather", {"city": "Paris"})]
    result = get_weather.invoke(answer.tool_calls[0])
    assert isinstance(result, ToolMessage)
    assert bound.invoke([*said, answer, result]).text == "It is 21 degrees."
    forced = model.bind_tools([get_weather], tool_choice="get_weather").invoke(said)
    assert forced.tool_calls[0]["name"] == "get_weather"

    for method in ("json_schema", "function_calling"):
        assert model.with_structured_output(City, method=method).invoke(ASKED) == PARIS, (responses, method)
