"""pydantic-ai: agents with tools and outputs of a type, over chat completions and over responses."""

import asyncio
import os

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    name: str
    population: int


PARIS = City(name="Paris", population=2_100_000)
provider = OpenAIProvider(base_url=f"{os.environ['URL']}/v1", api_key="none")


called = []


def get_weather(city: str) -> str:
    """The weather of a city."""
    called.append(city)
    return f"21 in {city}"


async def streamed(agent, text):
    async with agent.run_stream(text) as result:
        return "".join([piece async for piece in result.stream_text(delta=True)])


for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model = kind("words", provider=provider)
    agent = Agent(model)
    assert agent.run_sync("Hello").output == "Hello from the mill."
    assert asyncio.run(streamed(agent, "Hello")) == "Hello from the mill."

    called.clear()
    helped = Agent(model, tools=[get_weather])
    assert helped.run_sync("The weather in Paris?").output == "It is 21 degrees."
    assert asyncio.run(streamed(helped, "The weather in Paris?")) == "It is 21 degrees."
    assert called == ["Paris", "Paris"]

    for output in (City, NativeOutput(City)):
        assert Agent(model, output_type=output).run_sync("Paris as an object, please.").output == PARIS, (kind, output)
