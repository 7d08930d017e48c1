"""Law 14 through HTTP: two keys, streams, disconnects, sessions, log-probabilities of prompts, scarce blocks, shared
blocks and stored texts on disk, a draft model. Every text is that of a quiet engine; in the end all blocks are free.

TOKENMILL_LAW_14_SECONDS says how long.
"""

import json
import os
import random
import time

import httpx2
import pytest

from tests.at_once import run_at_once
from tests.empty import check_empty
from tests.marks import needs_native
from tests.serve.conftest import served
from tests.word_model import save_chat_model
from tokenmill import load

SECONDS = float(os.environ.get("TOKENMILL_LAW_14_SECONDS", "1"))
KEYS = ("one", "two")
BEGINNINGS = [" ".join(f"w{(seed * 7 + place) % 200}" for place in range(length)) for seed, length in ((1, 5), (2, 17))]
MASKS = [{"allowed_token_ids": list(range(0, 200, 3))}, {"bad_words": [*(f"w{n}" for n in range(50)), "w60 w70"]}]
SCARCE = {"block_size": 4, "cache_tokens": 60, "max_sequences": 3, "max_step_tokens": 9, "threads": 1}


class Client:
    """One thread's random requests; each compares what it got with the quiet engine's."""

    def __init__(self, number, url, quiet):
        self.random, self.quiet, self.counts = random.Random(number), quiet, {}
        headers = {"Authorization": f"Bearer {KEYS[number % len(KEYS)]}"}
        self.http = httpx2.Client(base_url=url, headers=headers, timeout=60)

    def work(self, stop):
        actions = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        with self.http:
            while not stop():
                action = self.random.choice(actions)
                self.counts[action.__name__] = self.counts.get(action.__name__, 0) + 1
                action()

    def request(self):
        """A body, and the text that is wanted. Prompts often begin alike."""
        more = (f" w{self.random.randrange(200)}" for _ in range(self.random.choice((0, 0, 1, 6))))
        prompt, new = self.random.choice(BEGINNINGS) + "".join(more), self.random.randint(1, 12)
        sampling = {"temperature": 0.0}
        if self.random.random() < 0.4:
            sampling = {"temperature": 0.9, "seed": self.random.randrange(3), "top_k": 50}
        if self.random.random() < 0.3:
            sampling |= self.random.choice(MASKS)
        wanted = self.quiet.generate(prompt, max_new_tokens=new, **sampling).text
        return {"prompt": prompt, "max_tokens": new, **sampling}, wanted

    def ask(self, body):
        response = self.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    def do_whole(self):
        body, wanted = self.request()
        assert self.ask(body)["text"] == wanted

    def read(self, body, leaves):
        """The text of a stream, and whether it was read to its end."""
        text = ""
        with self.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                if leaves and self.random.random() < 0.4:
                    return text, False
        return text, True

    def do_stream(self):
        body, wanted = self.request()
        assert self.read(body, leaves=False) == (wanted, True)

    def do_leave(self):
        body, wanted = self.request()
        text, is_whole = self.read(body, leaves=True)
        assert text == wanted if is_whole else wanted.startswith(text)

    def do_prompt_logprobs(self):
        body, wanted = self.request()
        choice = self.ask(body | {"echo": True, "logprobs": 1})
        assert choice["text"] == body["prompt"] + wanted
        ids = self.quiet.encode(body["prompt"])
        wanted_TV = self.quiet.logits(ids).log_softmax(-1)
        values = [float(wanted_TV[place, token]) for place, token in enumerate(ids[1:])]
        assert choice["logprobs"]["token_logprobs"][1 : len(ids)] == pytest.approx(values, abs=1e-4)

    def do_session(self):
        what, body = self.random.choice(("save", "restore", "erase")), {"prompt": self.random.choice(BEGINNINGS)}
        path = f"/v1/sessions/{self.random.choice('ab')}/{what}"
        assert self.http.post(path, json=body if what == "save" else None).status_code in (200, 404)


def try_everything(url, quiet, seconds=SECONDS):
    """Six clients at once; what one of them finds to be wrong is raised."""
    run_at_once([Client(number, url, quiet) for number in range(6)], seconds)


@needs_native
@pytest.mark.parametrize("tiny", ["llama", pytest.param("mistral", marks=pytest.mark.slow)])
def test_every_text_is_that_of_a_quiet_engine(tiny, tmp_path):
    """The second has a window of 7 tokens, and gives blocks back."""
    chat_model = save_chat_model(tmp_path / "model", tiny)
    quiet = load(chat_model, dtype="float32", max_length=96, speculate="off", prefix_cache=False, threads=1)
    on_disk = {"prefix_dir": str(tmp_path / "blocks"), "suffix_dir": str(tmp_path / "texts"), "suffix_limit": 1}
    settings = {**SCARCE, **on_disk, "draft_model": "q8"}
    with served(chat_model, settings, keys=KEYS, session_dir=tmp_path / "sessions") as server:
        try_everything(server.url, quiet)
        for key in KEYS:
            for name in "ab":
                httpx2.post(
                    f"{server.url}/v1/sessions/{name}/erase", headers={"Authorization": f"Bearer {key}"}, timeout=60
                )
        while server.admission.num_open:
            time.sleep(0.01)
        check_empty(server.driver.core)
