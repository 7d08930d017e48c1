"""Which of several continuations is the likeliest: echo with logprobs gives the log-probabilities of a prompt."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = client.models.list().data[0].id
question, choices = "The capital of France is", [" Paris", " London", " blue"]


def likelihood(choice: str) -> float:
    """The sum of the log-probabilities of the tokens of a choice."""
    done = client.completions.create(model=model, prompt=question + choice, echo=True, logprobs=0, max_tokens=0)
    found = done.choices[0].logprobs
    pairs = zip(found.text_offset, found.token_logprobs, strict=True)
    return sum(value for offset, value in pairs if offset >= len(question))


for choice in sorted(choices, key=likelihood, reverse=True):
    print(f"{likelihood(choice):8.2f} {choice}")
