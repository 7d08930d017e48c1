"""Measures replicas on Ray Serve: correct streams while replicas are killed, added and removed, and Ray's overhead.

    python benchmarks/replicas.py [--model smollm2-135m] [--streams 200] [--only kills,scale,...] [--json FILE]

Parts: `cost` (memory of each kind of process; milliseconds of a request with one token, against the server without
replicas), `affinity` (share of second requests that reach the replica of the first), `kills` (streams over two
replicas, kill -9 of one or both at random moments; the pause in a stream when its replica dies and another one runs),
`scale` (1 to 3 to 1 replicas under streams), `overload` (more requests than there are places). Every text is compared
with that of one engine that computes nothing else. Exit code 1 if one differs, or is lost.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from tokenmill import SamplingParams, load
from tokenmill.serve.http.address import Address, listen
from tokenmill.serve.start.options import Options
from tokenmill.settings.engine_config import EngineConfig

WORDS = "the of and river light stone under morning people small between never house green early voice".split()


def driver(options: argparse.Namespace) -> None:
    """Replicas and their gate in this process. A line on stdin with a number changes how many there are."""
    from ray import serve

    from tokenmill.scale.gate import GateServer
    from tokenmill.scale.replicas import NAME, Setup, mill, replicas

    config = EngineConfig(
        model=options.model, threads=1, max_sequences=options.sequences, max_length=options.max_length, speculate="auto"
    )
    setup = Setup(config, Options("bench", max_queued=options.max_queued), 3, longest_s=120.0)
    taken = listen(Address(port=options.port))
    with replicas(setup, options.replicas, num_cpus=6) as fleet:
        server = GateServer(fleet, taken, setup.options)

        def scale() -> None:
            for line in sys.stdin:
                serve.run(mill(setup, int(line)), name=NAME, route_prefix=None)
            server.drain(0.0)  # the process that has started this driver has ended

        threading.Thread(target=scale, daemon=True).start()
        print("ready", flush=True)
        server.serve_to_end()


class Running:
    """A child process with replicas, or without."""

    def __init__(self, options: argparse.Namespace, number: int, **more: Any) -> None:
        with listen(Address(port=0)) as taken:
            port = taken.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        given = {"model": options.model, "sequences": 24, "max-queued": 64, "max-length": 1024, **more}
        names = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        command = [sys.executable, __file__, "--driver", "--port", str(port), "--replicas", str(number), *names]
        if not number:
            command = [sys.executable, "-m", "tokenmill", "serve", options.model, "--port", str(port), "--threads", "1"]
            command += ["--max-sequences", "8", "--max-length", "1024", "--served-model-name", "bench", "--quiet"]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.client = httpx2.Client(base_url=self.url, timeout=300, trust_env=False, verify=False)
        self.wait_until(lambda: self.client.get("/ready").status_code == 200)

    def wait_until(self, holds: Any, limit_s: float = 120.0) -> None:
        ends_s = time.monotonic() + limit_s
        while time.monotonic() < ends_s:
            with suppress(httpx2.TransportError):
                if holds():
                    return
            if self.child.poll() is not None:
                raise SystemExit(f"the child ended with {self.child.returncode}")
            time.sleep(0.1)
        raise SystemExit("it does not come about")

    def scale(self, number: int) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{number}\n")
        self.child.stdin.flush()

    @property
    def names(self) -> set[str]:
        """The replicas that take requests."""
        return set(re.findall(r'replica="(\w+)"', self.client.get("/metrics").text))

    @property
    def pids(self) -> list[int]:
        """The processes of the replicas."""
        return [pid for pid, name in processes(self.child.pid) if "ServeReplica:tokenmill:Mill" in name]

    def kill_one(self, seed: random.Random) -> float:
        """When one was killed."""
        with suppress(ProcessLookupError, IndexError):
            os.kill(seed.choice(self.pids), signal.SIGKILL)
        return time.monotonic()

    def close(self) -> None:
        self.client.close()
        self.child.send_signal(signal.SIGTERM)
        code = self.child.wait(120)
        assert code == 0, code


def processes(pid: int) -> Iterator[tuple[int, str]]:
    """The descendants of a process, with their command lines."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                with suppress(OSError):
                    yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield from processes(child)


def megabytes(pid: int) -> float:
    """The memory of a process that it does not share."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M)
    return int(found[1]) / 1024 if found else 0.0


def body_of(number: int) -> dict[str, Any]:
    """A request: its settings change with its number."""
    seed = random.Random(number)
    body = {
        "prompt": " ".join(seed.choice(WORDS) for _ in range(seed.randint(5, 60))),
        "max_tokens": seed.randint(20, 120),
        "temperature": 0.8,
        "seed": number,
    }
    kinds = ({}, {"n": 2}, {"stop": [" the", "e."]}, {"logprobs": 1}, {"presence_penalty": 0.8, "top_p": 0.9}, {})
    return body | kinds[number % len(kinds)]


class Solo:
    """The texts of one engine that computes one request at a time."""

    def __init__(self, model: str) -> None:
        self._engine, self._lock = load(model, threads=1, max_length=1024, prefix_cache=False), threading.Lock()

    def texts(self, body: dict[str, Any]) -> list[tuple[str, str]]:
        names = {"max_tokens": "max_new_tokens"}
        settings = {names.get(name, name): value for name, value in body.items() if name not in ("prompt", "stream")}
        with self._lock:
            done = self._engine.generate(body["prompt"], SamplingParams(**settings))
        return [(each.text, {"eos": "stop"}.get(each.finish_reason, each.finish_reason)) for each in done.completions]


class Read:
    """One stream: its texts, when each chunk came, and the replica that began it."""

    def __init__(self, url: str, body: dict[str, Any]) -> None:
        self.times, texts, self.ends = [], {}, {}
        self.begun_s, self.error, self.replica = time.monotonic(), None, ""
        with httpx2.stream(
            "POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=300, trust_env=False, verify=False
        ) as response:
            self.status, self.replica = response.status_code, response.headers.get("x-replica", "")
            self.retry_after = response.headers.get("retry-after")
            lines = [] if self.status != 200 else response.iter_lines()
            is_over = False
            for line in lines:
                if line == "data: [DONE]":
                    is_over = True
                if not line.startswith("data: {"):
                    continue
                self.times.append(time.monotonic())
                chunk = json.loads(line.removeprefix("data: "))
                self.error = self.error or chunk.get("error")
                for choice in chunk.get("choices", ()):
                    texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                    if choice["finish_reason"] is not None:
                        self.ends[choice["index"]] = choice["finish_reason"]
        self.texts = [(texts[index], self.ends.get(index)) for index in sorted(texts)] if is_over else []

    def gap_at(self, when_s: float) -> float | None:
        """The seconds between the chunks around a moment; None if none was to come."""
        before = [each for each in self.times if each <= when_s]
        after = [each for each in self.times if each > when_s]
        return after[0] - before[-1] if before and after else None


@contextmanager
def happening(do: Any) -> Iterator[threading.Event]:
    """Have a function called in a thread, with an Event that says when to end."""
    stop = threading.Event()
    thread = threading.Thread(target=do, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join()


def all_streams(url: str, count: int, at_once: int) -> list[Read]:
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda number: Read(url, body_of(number)), range(count)))


def compare(found: list[Read], solo: Solo) -> dict[str, int]:
    """How many of the streams were lost, or have another text."""
    lost = [each.error or each.status for each in found if not each.texts]
    wrong = [number for number, each in enumerate(found) if each.texts and each.texts != solo.texts(body_of(number))]
    for each in lost[:3]:
        print("lost:", each)
    for number in wrong[:3]:
        print("differs:", body_of(number), found[number].texts, solo.texts(body_of(number)))
    return {"streams": len(found), "lost": len(lost), "different": len(wrong)}


def kills(options: argparse.Namespace, solo: Solo) -> dict[str, Any]:
    seed, rows = random.Random(options.seed), {}
    for name, least in (("beside one that is up", 2), ("at random", 1)):
        running, killed = Running(options, 2), []

        def kill(stop: threading.Event, running: Any = running, least: int = least, killed: Any = killed) -> None:
            while not stop.wait(seed.uniform(0.5, 10.0)):
                if len(before := running.names) < least:  # a replica that is killed whenever it starts is never there
                    continue
                when_s = running.kill_one(seed)
                time.sleep(1.0)
                killed.append((when_s, before - running.names))

        with happening(kill):
            found = all_streams(running.url, options.streams, options.at_once)
        gaps = sorted(
            gap
            for when_s, names in killed
            for each in found
            if each.replica in names and each.begun_s < when_s and (gap := each.gap_at(when_s)) is not None
        )
        row = compare(found, solo) | {"kills": len(killed), "streams that went on": len(gaps)}
        if gaps:
            row["gap p50 s"], row["gap p95 s"] = (round(gaps[int(share * (len(gaps) - 1))], 3) for share in (0.5, 0.95))
        rows[name] = row
        print("kills,", name, json.dumps(row), flush=True)
        running.close()
    return rows


def scale(options: argparse.Namespace, solo: Solo) -> dict[str, Any]:
    running = Running(options, 1)
    seen: list[int] = []

    def change(stop: threading.Event) -> None:
        for number in (3, 1) * 10:
            if stop.wait(2.0):
                return
            running.scale(number)
            while len(running.names) != number and not stop.wait(0.2):
                pass
            seen.append(len(running.names))

    with happening(change):
        found = all_streams(running.url, options.streams, options.at_once)
    running.close()
    return compare(found, solo) | {"numbers of replicas": [1, *seen]}


def overload(options: argparse.Namespace, solo: Solo) -> dict[str, Any]:
    running = Running(options, 2, **{"sequences": 2, "max-queued": 2})
    found = all_streams(running.url, 40, 40)
    running.close()
    taken = [(number, each) for number, each in enumerate(found) if each.status == 200]
    refused = [each for each in found if each.status == 429 and int(each.retry_after or 0) >= 1]
    wrong = [number for number, each in taken if each.texts != solo.texts(body_of(number))]
    others = len(found) - len(taken) - len(refused)
    return {"taken": len(taken), "429 with Retry-After": len(refused), "lost": others, "different": len(wrong)}


def affinity(options: argparse.Namespace, _: Solo) -> dict[str, Any]:
    running, same = Running(options, 2), 0
    first = {"role": "system", "content": "You tell tales."}
    for number in range(100):
        turns = [first, {"role": "user", "content": f"Tale {number}, please."}]
        homes = []
        for _ in range(2):
            answer = running.client.post("/v1/chat/completions", json={"messages": turns, "max_tokens": 2})
            homes.append(answer.headers["x-replica"])
            turns += [answer.json()["choices"][0]["message"], {"role": "user", "content": "Go on."}]
        same += homes[0] == homes[1]
    running.close()
    return {"conversations": 100, "second request where the first was": same / 100}


def cost(options: argparse.Namespace, _: Solo) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for name, number in (("without replicas", 0), ("two replicas", 2)):
        running, times = Running(options, number), []
        for _ in range(200):
            begun_s = time.perf_counter()
            running.client.post("/v1/completions", json={"prompt": "the", "max_tokens": 1, "temperature": 0})
            times.append(time.perf_counter() - begun_s)
        rows[name] = {"ms of a request": round(statistics.median(times) * 1e3, 2)}
        memory: dict[str, float] = {"the command itself": megabytes(running.child.pid)}
        for pid, command in processes(running.child.pid):
            kind = "replicas" if "ServeReplica" in command else "Ray's own processes"
            with suppress(OSError):
                memory[kind] = memory.get(kind, 0.0) + megabytes(pid)
        rows[name] |= {f"MB of {kind}": round(value) for kind, value in memory.items()}
        running.close()
    return rows


PARTS = {part.__name__: part for part in (cost, affinity, overload, scale, kills)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--driver", action="store_true", help=argparse.SUPPRESS)
    for name in ("port", "replicas", "sequences", "max-queued", "max-length"):
        parser.add_argument(f"--{name}", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        driver(options)
        return 0
    solo, rows = Solo(options.model), {}
    for name in options.only.split(","):
        rows[name] = PARTS[name](options, solo)
        print(name, json.dumps(rows[name], indent=1), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    flat = [*rows.values(), *(row for part in rows.values() for row in part.values() if isinstance(row, dict))]
    return int(any(row.get("lost") or row.get("different") for row in flat))


if __name__ == "__main__":
    sys.exit(main())
