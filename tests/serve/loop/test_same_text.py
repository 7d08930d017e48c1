"""A stream joined, the same request without streaming, and the library: one text, with other load running.

TOKENMILL_LOAD takes 200 prompts.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import openai
import pytest

from tests.serve.conftest import MODEL, served
from tests.serve.loop.test_load import SCARCE, words

NUM_PROMPTS = 200 if os.environ.get("TOKENMILL_LOAD") else 20


@pytest.fixture(scope="module")
def busy(chat_model):
    """A server whose blocks are scarce, with four clients that ask for other texts all the time."""
    with served(chat_model, SCARCE, max_queued=64) as server:
        stop = threading.Event()

        def load(number):
            with httpx2.Client(base_url=server.url, timeout=60) as http:
                while not stop.is_set():
                    number += 4
                    body = {"prompt": words(number, 1 + number % 30), "max_tokens": 1 + number % 40}
                    assert http.post("/v1/completions", json=body).status_code == 200

        with ThreadPoolExecutor(4) as pool:
            loads = [pool.submit(load, number) for number in range(4)]
            yield server
            stop.set()
            for each in loads:
                each.result(60)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 7}], ids=["greedy", "seeded"])
def test_streamed_whole_and_by_the_library(busy, quiet, sampling):
    with openai.OpenAI(base_url=f"{busy.url}/v1", api_key="none", max_retries=0, timeout=60) as client:

        def both(number):
            asked = {"model": MODEL, "prompt": f"w{number} {words(number, 6)}", "max_tokens": 20, **sampling}
            whole = client.completions.create(**asked).choices[0].text
            chunks = client.completions.create(**asked, stream=True)
            return asked["prompt"], whole, "".join(choice.text for chunk in chunks for choice in chunk.choices)

        with ThreadPoolExecutor(4) as pool:
            for prompt, whole, streamed in pool.map(both, range(NUM_PROMPTS)):
                assert whole == streamed == quiet.generate(prompt, max_new_tokens=20, **sampling).text
