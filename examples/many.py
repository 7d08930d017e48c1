"""Many prompts at once: the server runs them together, and asks the client to wait when its queue is full.

The client repeats what was refused with 429, after the time that the server names.
"""

import asyncio
import os

from openai import AsyncOpenAI

client = AsyncOpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
    max_retries=10,
)


async def main() -> None:
    model = (await client.models.list()).data[0].id
    prompts = [f"The number {number} is" for number in range(20)]
    asked = [client.completions.create(model=model, prompt=prompt, max_tokens=12) for prompt in prompts]
    for prompt, done in zip(prompts, await asyncio.gather(*asked), strict=True):
        print(f"{prompt}{done.choices[0].text!r}")


asyncio.run(main())
