"""A chat answer, shown as it is written. pip install openai; OPENAI_BASE_URL and OPENAI_API_KEY say where and who."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "How do plants make food?"}]

stream = client.chat.completions.create(
    model=model, messages=messages, max_tokens=60, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage:
        print(f"\n({chunk.usage.completion_tokens} tokens)")
