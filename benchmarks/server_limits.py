"""The limits of a server under load: clients, a long prompt among streams, a prefix again, slow senders.

python benchmarks/server_limits.py [--json FILE]

clients   tokens per second of 8 clients together over those of one, and the 95th percentile of their first tokens
          over that of one; clients come one after the other, so that they do not all begin at once
stall     8 streams are being written when a prompt of 7,500 tokens comes: the gaps between two tokens of a stream
prefix    the time to the first token of a prompt of 1,000 tokens, and of another one that begins with the same 992
slow      the time to a first token while 200 connections send a byte a second, over that of an idle server
tenants   whether the time to first token reveals that a prompt is in the prefix cache: the AUC of cached prompts
          against new ones, for the API key that sent them before and for another API key
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from server import MODEL, Prompts, our_command, process

from tokenmill.bench.rows import provenance

PORT, SLOW = 18084, 200
KEYS = ("first-tenant", "second-tenant")
TRIALS = 250


async def stream(prompt: list[int], new: int, times_s: list[float], key: str = KEYS[0]) -> None:
    """Ask for a stream and note when each piece of text comes."""
    body = json.dumps({"prompt": prompt, "max_tokens": new, "stream": True, "temperature": 0, "ignore_eos": True})
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    head += f"Authorization: Bearer {key}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
    while part := await reader.read(65536):
        if b'"text":' in part:
            times_s.append(time.perf_counter())
    writer.close()


async def first_s(prompt: list[int], new: int = 1, key: str = KEYS[0]) -> float:
    """The time to the first token."""
    times_s: list[float] = []
    begun_s = time.perf_counter()
    await stream(prompt, new, times_s, key)
    return times_s[0] - begun_s


async def clients(prompts: Prompts) -> dict[str, float]:
    """See the module."""
    found: dict[int, tuple[float, float]] = {}
    for count in (1, 8):
        firsts_s: list[float] = []

        async def client(number: int, asked: list[list[int]], firsts_s: list[float] = firsts_s) -> None:
            await asyncio.sleep(0.15 * number)
            for prompt in asked:
                firsts_s.append(await first_s(prompt, 128))

        all_asked = [[prompt[:32] for prompt in prompts.take(6)] for _ in range(count)]
        begun_s = time.perf_counter()
        await asyncio.gather(*(client(number, asked) for number, asked in enumerate(all_asked)))
        rate = count * 6 * 128 / (time.perf_counter() - begun_s)
        found[count] = rate, sorted(firsts_s)[int(0.95 * len(firsts_s))]
    (one, one_s), (eight, eight_s) = found[1], found[8]
    return {"one_per_s": one, "eight_per_s": eight, "ratio": eight / one, "p95_ratio": eight_s / one_s}


async def stall(prompts: Prompts) -> dict[str, float]:
    """See the module."""
    times: list[list[float]] = [[] for _ in range(8)]
    streams = [asyncio.create_task(stream(prompt[:32], 1500, t)) for prompt, t in zip(prompts.take(8), times)]
    while not all(len(each) > 20 for each in times):
        await asyncio.sleep(0.01)
    begun_s = time.perf_counter()
    long = [token for prompt in prompts.take(60) for token in prompt][:7500]
    first = await first_s(long)
    ended_s = time.perf_counter()
    for each in streams:
        each.cancel()
    gaps = [b - a for each in times for a, b in pairwise(each) if b > begun_s and a < ended_s]
    middle_s, p95_s = statistics.median(gaps), sorted(gaps)[int(0.95 * len(gaps))]
    return {"first_s": first, "median_gap_s": middle_s, "p95_gap_s": p95_s, "longest_gap_s": max(gaps)}


async def prefix(prompts: Prompts) -> dict[str, float]:
    """See the module."""
    anew, again = [], []
    for _ in range(5):
        tokens = [token for prompt in prompts.take(8) for token in prompt][:1000]
        anew.append(await first_s(tokens))
        again.append(await first_s([*tokens[:992], *tokens[:8]]))
    ratios = [b / a for a, b in zip(anew, again)]
    return {"anew_s": statistics.median(anew), "again_s": statistics.median(again), "ratio": statistics.median(ratios)}


async def slow(prompts: Prompts) -> dict[str, float]:
    """See the module."""

    async def drip() -> None:
        data = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 100
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", PORT)
                for byte in data:
                    writer.write(bytes([byte]))
                    await writer.drain()
                    await asyncio.sleep(1)
            except OSError:
                continue  # the server has closed it, and another comes

    idle = [await first_s(prompt[:32]) for prompt in prompts.take(20)]
    drips = [asyncio.create_task(drip()) for _ in range(SLOW)]
    await asyncio.sleep(3)
    busy = [await first_s(prompt[:32]) for prompt in prompts.take(20)]
    for each in drips:
        each.cancel()
    ratio = statistics.median(busy) / statistics.median(idle)
    return {"idle_s": statistics.median(idle), "busy_s": statistics.median(busy), "ratio": ratio}


async def tenants(prompts: Prompts) -> dict[str, float]:
    """See the module. Known and new prompts come in turn, so that both meet the same machine."""
    del prompts  # the documents are too short
    found: dict[str, tuple[list[float], list[float]]] = {key: ([], []) for key in KEYS}
    numbers = random.Random(1)
    for number in range(2 * TRIALS):
        key = KEYS[number % 2]
        known, new = ([numbers.randrange(1000, 40_000) for _ in range(256)] for _ in range(2))
        await first_s(known, key=KEYS[0])
        for kind in (0, 1) if number // 2 % 2 else (1, 0):
            found[key][kind].append(await first_s((known, new)[kind], key=key))
    return {f"{name}_auc": sooner(*found[key]) for name, key in zip(("own", "other"), KEYS, strict=True)}


def sooner(known: list[float], new: list[float]) -> float:
    """The share of pairs of both in which the known one was answered sooner."""
    return sum((a < b) + (a == b) / 2 for a in known for b in new) / (len(known) * len(new))


KINDS: list[Callable[[Prompts], Awaitable[dict[str, float]]]] = [clients, stall, prefix, slow, tenants]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", choices=[kind.__name__ for kind in KINDS], help="one of them")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        own = SimpleNamespace(model=options.model, folder=folder, no_disk=False, prompt=128)
        prompts = Prompts(own)
        command = our_command(own, PORT)
        command[command.index("--max-length") + 1] = "8192"
        (keys := Path(folder) / "keys").write_text("\n".join(KEYS), encoding="utf-8")
        with process([*command, "--cache-tokens", "24576", "--api-key-file", str(keys)], PORT, "/ready"):
            asyncio.run(first_s(prompts.take(1)[0], 32))
            for kind in KINDS:
                if options.only not in (None, kind.__name__):
                    continue
                found[kind.__name__] = asyncio.run(kind(prompts))
                print(kind.__name__, ", ".join(f"{k} {v:.3f}" for k, v in found[kind.__name__].items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps({**provenance(), **found}, indent=1))


if __name__ == "__main__":
    main()
