"""instructor: an object out of a call of a tool and out of JSON by its schema, whole and in parts."""

import os

import instructor
from openai import OpenAI
from pydantic import BaseModel


class City(BaseModel):
    name: str
    population: int


PARIS = {"name": "Paris", "population": 2_100_000}
ASKED = [{"role": "user", "content": "Paris as an object, please."}]
client = OpenAI(base_url=f"{os.environ['URL']}/v1", api_key="none", max_retries=0)

for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS_STRICT):
    asked = {"model": "words", "messages": ASKED, "max_retries": 0}
    made = instructor.from_openai(client, mode=mode)
    found = made.chat.completions.create(response_model=City, **asked)
    assert isinstance(found, City) and found.model_dump() == PARIS, (mode, found)
    *_, last = made.chat.completions.create_partial(response_model=City, **asked)
    assert last.model_dump() == PARIS, (mode, last)
