"""Load for a server that speaks OpenAI's protocol: which requests, when they are sent, what comes back.

Open loop: requests are sent when they are due, however slow the answers are; times between them follow a gamma
distribution (Poisson arrivals at burstiness 1). Closed loop: so many are in flight, and a new one starts when one
ends. With both, a request that is due waits for its place.

Every request has a connection of its own, never through a proxy: neither a kept connection that the server closes in
that moment nor a proxy's queue shall count as the server's doing. Figures are made in `load_report`.
"""

import asyncio
import contextlib
import json
import math
import random
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import httpx2

from tokenmill.bench.address import check_address, check_key, endpoint, headers_of
from tokenmill.bench.load_report import GOODPUT, AnswerStream, Failure, Outcome, Record, message_of
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.hub.progress import Progress, Silent

Clock = Callable[[], float]

# Common and short, so that most vocabularies hold each as one token.
_WORDS = """time year people way day man thing woman life child world school state family student group country
problem hand part place case week company system program question work government number night point home water room
mother area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city name team minute idea body back parent face level office door
health person art war history party result change morning reason research girl guy food moment air teacher force
""".split()

# For a server to say that it is there, and to close a stream after [DONE].
_GREETING_S, _GOODBYE_S = 10.0, 1.0

_TICK_S = 0.01


@dataclass(frozen=True)
class LoadTest:
    """The load to send, and the server; checked when made, and errors name the option of `tokenmill bench load`."""

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    chat: bool = False
    rate: float = math.inf
    burstiness: float = 1.0
    concurrency: int | None = None
    num_prompts: int = 100
    prompt: int = 128
    new: int = 64
    seed: int = 0
    vocab_size: int | None = None
    prompts: Path | None = None
    ignore_eos: bool = True
    time_limit: float = 600.0
    goodput: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_address("--url", self.url, "--api-key")
        for option in ("rate", "burstiness"):
            _check(f"--{option}", getattr(self, option), getattr(self, option) > 0, "a number above 0, or inf")
        _check("--time-limit", self.time_limit, 0 < self.time_limit < math.inf, "seconds above 0")
        for option in ("concurrency", "num_prompts", "prompt", "new", "vocab_size"):
            value = getattr(self, option)
            _check("--" + option.replace("_", "-"), value, value is None or value >= 1, "a whole number of at least 1")
        if self.vocab_size is not None:
            _check("--vocab-size", self.vocab_size, not self.chat, "only without --chat, which takes text")
            allowed = "only without --prompts, which brings its own"
            _check("--vocab-size", self.vocab_size, self.prompts is None, allowed)
        for name, bound_ms in self.goodput.items():
            allowed = f"one of {', '.join(GOODPUT)} and milliseconds, as ttft:500"
            _check("--goodput", f"{name}:{bound_ms:g}", name in GOODPUT and 0 <= bound_ms < math.inf, allowed)
        check_key("--api-key", self.api_key)


@dataclass(frozen=True)
class LoadRequest:
    """One request: what its body says beyond what all bodies say, and its length in words or ids."""

    body: Mapping[str, Any]
    length: int


def arrivals_s(load: LoadTest) -> list[float]:
    """Compute when each request is due, in seconds since the start; the same for the same seed.

    As in vLLM, times are scaled so that the last is due at num_prompts / rate: the offered rate is the requested one.
    """
    if math.isinf(load.rate):
        return [0.0] * load.num_prompts
    draw = random.Random(f"arrivals {load.seed}")  # noqa: S311  a load, not a secret
    even = math.isinf(load.burstiness)
    gaps = [1.0 if even else draw.gammavariate(load.burstiness, 1.0) for _ in range(load.num_prompts)]
    # A shape near 0 may draw nothing but zeros: all at once, then, at the end.
    scale = load.num_prompts / load.rate / (math.fsum(gaps) or 1.0)
    return [total * scale for total in accumulate(gaps)]


def build_asks(load: LoadTest) -> list[LoadRequest]:
    """Make every prompt, the same for the same seed; a longer run begins with the prompts of a shorter one."""
    if load.prompts is not None:
        given = _read(load.prompts, load.chat)
        return [given[index % len(given)] for index in range(load.num_prompts)]
    return [_invent(load, index) for index in range(load.num_prompts)]


def _invent(load: LoadTest, index: int) -> LoadRequest:
    draw = random.Random(f"prompt {load.seed} {index}")  # noqa: S311  a load, not a secret
    if load.vocab_size is not None:
        return LoadRequest({"prompt": [draw.randrange(load.vocab_size) for _ in range(load.prompt)]}, load.prompt)
    return _ask(" ".join(draw.choices(_WORDS, k=load.prompt)), load.chat)


def _ask(prompt: str | list[int], chat: bool) -> LoadRequest:
    length = len(prompt.split() if isinstance(prompt, str) else prompt)
    return LoadRequest({"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}, length)


def _read(path: Path, chat: bool) -> list[LoadRequest]:
    """Read one prompt from each line, text or a JSON object; empty lines do not count."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError("--prompts", str(path), f"a file that can be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise ConfigError("--prompts", str(path), f"text in UTF-8, and byte {error.start} is not") from None
    asks = [_parse(line, chat, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    _check("--prompts", str(path), bool(asks), "a file with a prompt on each line, and this one is empty")
    return asks


def _parse(line: str, chat: bool, where: str) -> LoadRequest:
    if not line.startswith("{"):
        return _ask(line.removesuffix("\r"), chat)
    allowed = 'text, or a JSON object with "prompt": text' + (' or "messages": [...]' if chat else " or ids")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigError("--prompts", where, allowed) from None
    unknown = ", ".join(sorted(entry.keys() - {"prompt", "messages", "max_tokens"}))
    _check("--prompts", where, not unknown, f"{allowed}, with max_tokens at most beside it, and not {unknown}")
    messages, prompt, longest = entry.get("messages"), entry.get("prompt"), entry.get("max_tokens", 1)
    _check("--prompts", where, type(longest) is int and longest >= 1, "max_tokens of at least 1")
    own = {"max_tokens": longest} if "max_tokens" in entry else {}
    if chat and isinstance(messages, list) and messages and prompt is None:
        return LoadRequest({"messages": messages, **own}, len(json.dumps(messages).split()))
    is_text = isinstance(prompt, str) and bool(prompt)
    is_ids = isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)
    _check("--prompts", where, messages is None and (is_text or (is_ids and not chat)), allowed)
    ask = _ask(prompt, chat)
    return replace(ask, body={**ask.body, **own})


def find_model(load: LoadTest) -> str:
    """Find the model to request, which proves that a server answers there."""
    address = endpoint(load.url, "models")
    try:
        with httpx2.Client(timeout=min(load.time_limit, _GREETING_S), trust_env=False) as client:
            answer = client.get(address, headers=headers_of(load.api_key))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise TokenmillError(f"no server answers at {load.url} ({reason}): start one, or give --url") from None
    if answer.status_code in (401, 403):
        refused = "another key" if load.api_key else "a key"
        raise TokenmillError(f"{address} wants {refused} (HTTP {answer.status_code}): give it with --api-key")
    if load.model is not None:
        return load.model
    try:
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx2.HTTPStatusError, ValueError, LookupError, TypeError):
        none = f"{address} lists no model (HTTP {answer.status_code})"
        raise TokenmillError(f"{none}: say with --model which name to ask for") from None


def send(
    load: LoadTest,
    model: str,
    asks: Sequence[LoadRequest],
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Outcome:
    """Send everything and wait for it. Ctrl-C ends it early, and what has come so far is the outcome."""
    _allow_sockets(min(load.num_prompts, load.concurrency or load.num_prompts))
    return asyncio.run(_Run(load, model, progress or Silent(), clock).all(asks))


class _Run:
    """The state that the requests of one run share."""

    def __init__(self, load: LoadTest, model: str, progress: Progress, clock: Clock) -> None:
        self.load, self.model, self.progress, self.clock = load, model, progress, clock
        self.address = endpoint(load.url, "chat/completions" if load.chat else "completions")
        self.headers = headers_of(load.api_key)
        # Shared, since making one takes longer than many a request.
        self.tls = httpx2.create_ssl_context(trust_env=False)
        self.places = asyncio.Semaphore(load.concurrency) if load.concurrency else contextlib.nullcontext()
        self.ended: dict[int, Record] = {}
        self.in_flight = self.max_in_flight = 0
        self.start_s = self.lag_s = 0.0

    def now_s(self) -> float:
        return self.clock() - self.start_s

    async def all(self, asks: Sequence[LoadRequest]) -> Outcome:
        tasks: list[asyncio.Task[None]] = []
        due_s, interrupted = arrivals_s(self.load), False
        await self.warm_up()
        watch = asyncio.create_task(self.watch_lag())
        self.start_s = self.clock()
        try:
            for index, ask in enumerate(asks):
                # Without a pause where there is none to make: what is due together leaves together.
                if (pause_s := due_s[index] - self.now_s()) > 0:
                    await asyncio.sleep(pause_s)
                tasks.append(asyncio.create_task(self.one(index, ask, due_s[index])))
            await asyncio.gather(*tasks)
        except asyncio.CancelledError:  # how asyncio.run tells of Ctrl-C
            interrupted = True
        finally:
            duration_s = self.now_s()
            for task in (watch, *tasks):
                task.cancel()
            await asyncio.gather(watch, *tasks, return_exceptions=True)
        records = [self.ended[index] for index in sorted(self.ended)]
        return Outcome(records, len(asks), duration_s, self.max_in_flight, self.lag_s, interrupted)

    async def warm_up(self) -> None:
        """Connect once: the first connection imports modules, and the first request must not pay for that."""
        with contextlib.suppress(httpx2.HTTPError):
            async with httpx2.AsyncClient(verify=self.tls, trust_env=False, timeout=_GREETING_S) as client:
                await client.get(endpoint(self.load.url, "models"), headers=self.headers)

    async def watch_lag(self) -> None:
        """Note how late this program itself has been at worst: what waits for it looks as if the server were slow."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            self.lag_s = max(self.lag_s, loop.time() - due_s)

    async def one(self, index: int, ask: LoadRequest, due_s: float) -> None:
        record = Record(due_s=due_s, input_tokens=ask.length)
        async with self.places:
            self.in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.in_flight)
            try:
                await self.exchange(ask, record)
            except Failure as failure:
                record.failure, record.detail = failure.reason, failure.detail
            finally:
                self.in_flight -= 1
        self.ended[index] = record
        self.progress.advance(len(self.ended), self.load.num_prompts)

    async def exchange(self, ask: LoadRequest, record: Record) -> None:
        """Carry out one request from its first byte to its last; Failure for whatever goes wrong with it."""
        stream, limit_s = AnswerStream(record), self.load.time_limit
        # A client each: one pool for all takes time that grows with the square of what is in flight.
        async with httpx2.AsyncClient(verify=self.tls, trust_env=False, timeout=None) as client:
            # Encoded here: httpx2 writes no \uXXXX, and a lone surrogate in a file of prompts would end the run.
            body = json.dumps(_body(self.load, self.model, ask)).encode()
            request = client.build_request("POST", self.address, content=body, headers=self.headers)
            record.sent_s = self.now_s()
            try:
                async with asyncio.timeout(limit_s) as timer:
                    async with contextlib.aclosing(await client.send(request, stream=True)) as answer:
                        await self.receive(answer, stream, timer)
            except (TimeoutError, httpx2.HTTPError) as error:
                if not stream.done:
                    raise _failure(error, limit_s) from None
        stream.end()

    async def receive(self, answer: httpx2.Response, stream: AnswerStream, timer: asyncio.Timeout) -> None:
        if answer.status_code != 200:
            raise Failure(f"HTTP {answer.status_code}", message_of(await answer.aread()))
        async for block in answer.aiter_bytes():
            already = stream.done
            stream.feed(block, self.now_s())
            if stream.done and not already:
                # To hang up at once would look to the server as if its client had left.
                timer.reschedule(min(timer.when() or math.inf, asyncio.get_running_loop().time() + _GOODBYE_S))


def _body(load: LoadTest, model: str, ask: LoadRequest) -> dict[str, Any]:
    own = {"ignore_eos": True} if load.ignore_eos else {}
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    # max_tokens also for chat: every open server knows it, and not all know max_completion_tokens.
    return {"model": model, "max_tokens": load.new, "temperature": 0, **streaming, **own, **ask.body}


def _failure(error: Exception, limit_s: float) -> Failure:
    if isinstance(error, TimeoutError):
        return Failure("time limit", f"not done after {limit_s:g} s")
    reason = "no connection" if isinstance(error, httpx2.ConnectError) else "connection dropped"
    return Failure(reason, str(error) or type(error).__name__)


def _allow_sockets(in_flight: int) -> None:
    """Raise the soft limit of open files as far as is needed and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = in_flight + 64
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _check(option: str, value: object, fine: bool, allowed: str) -> None:
    if not fine:
        raise ConfigError(option, value, allowed)
