"""A small server that speaks OpenAI's protocol, right in every way but for one fault that a test chooses.

Its model is a hash: the next token follows from the prompt, the tokens so far and, above temperature 0, the seed.
"""

import asyncio
import json
import secrets
import threading
import time
from contextlib import contextmanager
from hashlib import blake2b

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from tokenmill.prove.trial import Trial
from tokenmill.serve.http.address import Address, listen

WORDS = "a mill stands by the river and its wheel turns all night while we sleep".split()
LONG = 1500  # characters of a prompt that is long


class Fake:
    """fault: what is wrong with it. without: fields that have no effect, and routes that are not there."""

    def __init__(self, fault="", without=(), refuses=None, key=None):
        self.fault, self.without, self.refuses, self.key = fault, set(without), refuses, key
        self.in_flight, self.long_in_flight, self.unseeded, self.left = 0, 0, 0, 0
        self.seen, self.restarts, self.full_for, self.num_posts = set(), 0, 0, 0
        self.expected, self.arrived = 0, 0
        routes = [("/v1/models", self.models, "GET"), ("/restart", self.restart, "POST")]
        for name in ("completions", "chat/completions"):
            if name not in self.without:
                routes.append((f"/v1/{name}", self.generate, "POST"))
        self.app = Starlette(routes=[Route(path, run, methods=[method]) for path, run, method in routes])

    async def models(self, request):
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"message": "no"}}, 401)
        return JSONResponse({"object": "list", "data": [{"id": "fake"}]})

    async def restart(self, _):
        self.restarts += 1
        self.seen.clear()
        return JSONResponse({})

    async def generate(self, request):
        self.num_posts += 1
        body = await request.json()
        if self.full_for:
            self.full_for -= 1
            return JSONResponse({"error": {"message": "the queue is full"}}, 429, {"Retry-After": "0"})
        if self.refuses and self.refuses in body:
            return JSONResponse({"error": {"message": f"{self.refuses} is not known"}}, 400)
        is_chat = "messages" in body
        prompt = json.dumps(body["messages"] if is_chat else body["prompt"])
        ids = body["prompt"] if isinstance(body.get("prompt"), list) else [len(prompt), *map(ord, prompt[-3:])]
        texts = Texts(self, body, prompt, is_chat, ids)
        if body.get("stream") and "stream" not in self.without:
            return StreamingResponse(texts.events(), media_type="text/event-stream")
        return JSONResponse(await texts.whole())


class Texts:
    """The texts of one request."""

    def __init__(self, fake, body, prompt, is_chat, ids):
        self.fake, self.body, self.prompt, self.is_chat, self.ids = fake, body, prompt, is_chat, ids
        self.n = 1 if "n" in fake.without else body.get("n", 1)
        self.temperature = body.get("temperature", 1)
        self.is_long = len(prompt) > LONG
        self.is_warm = prompt in fake.seen
        fake.seen.add(prompt)

    def seed(self, index):
        if not self.temperature:
            return ""
        seed = None if "seed" in self.fake.without else self.body.get("seed")
        return str(secrets.token_hex(4) if seed is None else seed + index)

    def disturbed(self, index):
        """Whether the fault shows now, in the text of this index."""
        fake = self.fake
        return {
            "crowd": fake.in_flight > 1,
            "warm": self.is_warm,
            "copies": index > 0,
            "neighbours": self.body.get("seed") is not None and fake.unseeded > 0,
            "lengths": not self.is_long and fake.long_in_flight > 0,
            "cancelled": fake.left > 0,
            "restart": fake.restarts > 0,
            "again": fake.num_posts % 5 == 0,
            "continued": isinstance(self.body.get("prompt"), list) and len(self.body["prompt"]) > 6,
        }.get(fake.fault, False)

    def token(self, index, seed, made, is_disturbed):
        """The number of the next word, and its log-probability."""
        start = self.ids if not self.temperature and not self.is_chat else self.prompt
        text = f"{[*start, *made] if isinstance(start, list) else (start, made)} {seed} {is_disturbed}"
        draw = blake2b(text.encode(), digest_size=4).digest()
        shift = 1e-6 if self.fake.fault == "logprobs" and self.fake.in_flight > 1 else 0.0
        return draw[0] % len(WORDS), -draw[1] / 256 + shift

    def pause_s(self, place):
        """Whoever is the first to be seen leaving must have the time for it, on a busy machine too."""
        if self.fake.fault == "cancelled" and not self.fake.left and self.body.get("stream") and place == 2:
            return 1.0
        return 0.0003 if self.body.get("stream") or self.is_long else 0.0001

    async def steps(self):
        """(index, token, log-probability, finish_reason or None), of all texts in turns; counted as in flight."""
        fake, is_unseeded = self.fake, bool(self.temperature) and self.body.get("seed") is None
        fake.in_flight, fake.long_in_flight = fake.in_flight + 1, fake.long_in_flight + self.is_long
        fake.unseeded, fake.arrived = fake.unseeded + is_unseeded, fake.arrived + 1
        seeds, made = [self.seed(index) for index in range(self.n)], [[] for _ in range(self.n)]
        is_done = False
        try:
            most = self.body.get("max_tokens", 16)
            for place in range(most):
                await asyncio.sleep(self.pause_s(place))
                while fake.arrived < fake.expected:
                    await asyncio.sleep(0.001)
                for index in range(self.n):
                    token, logprob = self.token(index, seeds[index], made[index], self.disturbed(index))
                    made[index].append(token)
                    yield index, token, logprob, "length" if place == most - 1 else None
            is_done = True
        finally:
            fake.in_flight, fake.long_in_flight = fake.in_flight - 1, fake.long_in_flight - self.is_long
            fake.unseeded -= is_unseeded
            fake.left += not is_done

    def choice(self, index, tokens, logprobs, reason, is_delta):
        words = "".join(f"{WORDS[token]} " for token in tokens)
        named = [f"{WORDS[token]} " for token in tokens]
        found = {"index": index, "finish_reason": reason}
        if self.is_chat:
            found["delta" if is_delta else "message"] = {"role": "assistant", "content": words}
        else:
            found["text"] = words
        if self.body.get("logprobs") and "logprobs" not in self.fake.without:
            content = [{"token": each, "logprob": value} for each, value in zip(named, logprobs)]
            plain = {"tokens": named, "token_logprobs": list(logprobs)}
            found["logprobs"] = {"content": content} if self.is_chat else plain
        if self.body.get("return_token_ids") and "return_token_ids" not in self.fake.without:
            found["token_ids"] = list(tokens)
        return found

    async def whole(self):
        tokens, logprobs = [[] for _ in range(self.n)], [[] for _ in range(self.n)]
        async for index, token, logprob, _ in self.steps():
            tokens[index].append(token)
            logprobs[index].append(logprob)
        choices = [self.choice(index, tokens[index], logprobs[index], "length", False) for index in range(self.n)]
        return {"object": "chat.completion" if self.is_chat else "text_completion", "choices": choices}

    async def events(self):
        place = 0
        async for index, token, logprob, reason in self.steps():
            place += 1
            if self.fake.fault == "streamed" and place == 3:
                continue  # this one is dropped
            yield f"data: {json.dumps({'choices': [self.choice(index, [token], [logprob], reason, True)]})}\n\n"
        yield "data: [DONE]\n\n"


@contextmanager
def crowds_of(fake):
    """What the client sends together is in flight together, however slowly it sends it: no fault depends on that."""
    together = Trial.together

    async def announced(trial, asks, stream=False, beside=()):
        fake.expected, fake.arrived = len(asks) + len(beside), 0
        try:
            return await together(trial, asks, stream, beside)
        finally:
            fake.expected = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trial, "together", announced)
        yield fake


@contextmanager
def running(app, **options):
    """The address of an app, in a thread. options: of uvicorn."""
    with listen(Address(port=0)) as taken:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off", **options))
        thread = threading.Thread(target=server.run, args=([taken],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.001)
        try:
            scheme = "https" if "ssl_certfile" in options else "http"
            yield f"{scheme}://127.0.0.1:{taken.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
