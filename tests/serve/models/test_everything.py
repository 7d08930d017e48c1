"""Several models under load: random requests, streams, clients that leave, engines that fail, and little room."""

import json
import os
import random
import threading
from contextlib import suppress

import httpx2
import pytest

from tests.serve.models.conftest import loaded, quiet_texts, several

NUM_THREADS, NUM_EACH = 6, int(os.environ.get("TOKENMILL_MODELS_REQUESTS", "8"))
PROMPTS = [f"w{first} w{first + 1} w{first + 2} w{first + 3} " * 3 for first in range(1, 40, 6)]


@pytest.fixture(scope="module")
def wanted(paths):
    return quiet_texts(paths, PROMPTS, 8)


def ask(http, chance, name, prompt):
    """One request of a random kind; its text, or None where the client has left."""
    body = {"model": name, "prompt": prompt, "max_tokens": 8, "temperature": 0}
    kind = chance.choice(("whole", "whole", "stream", "leaves", "ollama"))
    if kind == "whole":
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]
    if kind == "ollama":
        keep = chance.choice((None, 0, "1ms", "5m", -1))
        body = {"model": name, "prompt": prompt, "raw": True, "stream": False, "keep_alive": keep}
        answer = http.post("/api/generate", json=body | {"options": {"num_predict": 8, "temperature": 0}})
        assert answer.status_code == 200, answer.text
        return answer.json()["response"]
    if kind == "leaves":
        with suppress(httpx2.TransportError):
            http.post("/v1/completions", json=body, timeout=chance.choice((0.001, 0.05, 0.5)))
        return None
    text = ""
    with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["text"]
            if chance.random() < 0.02:
                return None
    return text


@pytest.mark.parametrize("room", [1, 2])
def test_every_text_is_the_one_of_a_quiet_engine(room, paths, wanted, tmp_path):
    wrong, asked = [], []

    def client(seed):
        chance = random.Random(seed)
        with httpx2.Client(base_url=server.url, timeout=300, trust_env=False, verify=False) as http:
            for _ in range(NUM_EACH):
                name, prompt = chance.choice([*paths]), chance.choice(PROMPTS)
                text = ask(http, chance, name, prompt)
                asked.append(text)
                if text is not None and text != wanted[name, prompt]:
                    wrong.append((name, prompt, text, wanted[name, prompt]))

    with several(paths, room=room, settings={"prefix_dir": str(tmp_path)}, keep_alive_s=0.05) as server:
        threads = [threading.Thread(target=client, args=[seed]) for seed in range(NUM_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and len(asked) == NUM_THREADS * NUM_EACH
        assert len(loaded(server)) <= room
        for each in server.residents.all:
            assert not each.waiters
