"""Several models behind one port: 500 requests at random under a limit of memory, and the time of a swap.

Run: python benchmarks/models.py [--requests N] [--memory SIZE] [--kill N] NAME=MODEL NAME=MODEL …

A server of these models first gets streams one after the other, each of the next model in turn: the time to the first
token is the time of a swap where one model fits at a time. Then several clients send requests at random, each for one
model and one of ten prompts, at temperature 0; a server of each model alone has said before what the texts should be.
After every N/(KILL + 1) requests the server is killed with signal 9 and started again, and a client whose connection
breaks repeats its request. The report has the number of answers, the number of answers with another text, the highest
resident memory of the server beside the limit, and the times of the swaps.
"""

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2

SUBJECTS = ("the sea", "rain", "bread", "stars", "wool", "iron", "salt", "trees", "birds", "glass")
PROMPTS = [f"Tell me about {subject}. " * 4 for subject in SUBJECTS]
CLIENTS, TOKENS, SWAPS = 6, 12, 10
TRIES = 100  # of one request, while the server starts again


class Server:
    """`tokenmill serve` in a process that can be killed and started again at the same port."""

    def __init__(self, models: list[str], options: list[str], port: int) -> None:
        self._command = [sys.executable, "-m", "tokenmill", "serve", *models, "--port", str(port), *options, "-q"]
        self.url, self.most_bytes, self._is_over = f"http://127.0.0.1:{port}", 0, threading.Event()
        self.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = subprocess.Popen(self._command)
        while True:
            try:
                httpx2.get(f"{self.url}/ready", timeout=5, trust_env=False)
            except httpx2.TransportError:
                if self.process.poll() is not None:
                    raise SystemExit(f"the server has ended: {self.process.returncode}") from None
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """Kill it as a crash would, and start it again."""
        self.process.kill()
        self.process.wait()
        self.start()

    def end(self) -> None:
        """End it in order."""
        self._is_over.set()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()

    def _watch(self) -> None:
        while not self._is_over.wait(0.02):
            try:
                lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
                found = next((line for line in lines if line.startswith("VmRSS:")), "VmRSS: 0")
                self.most_bytes = max(self.most_bytes, 1024 * int(found.split()[1]))
            except OSError:
                continue


@contextmanager
def served(models: list[str], options: list[str], port: int) -> Iterator[Server]:
    """Run a server inside this context."""
    server = Server(models, options, port)
    try:
        yield server
    finally:
        server.end()


def ask(url: str, model: str, prompt: str) -> str:
    """Return the text; ask again where the connection breaks."""
    body = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
    for _ in range(TRIES):
        try:
            answer = httpx2.post(f"{url}/v1/completions", json=body, timeout=300, trust_env=False)
            if answer.status_code == 200:
                return str(answer.json()["choices"][0]["text"])
            print(answer.status_code, answer.text[:200], file=sys.stderr)
        except httpx2.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"no answer of {model} after {TRIES} tries")


def first_token_s(url: str, model: str) -> float:
    """Measure the time to the first event of a stream."""
    body = {"model": model, "prompt": "Once", "max_tokens": 2, "temperature": 0, "stream": True}
    begun_s = time.perf_counter()
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=300, trust_env=False) as answer:
        next(answer.iter_lines())
        return time.perf_counter() - begun_s


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="+")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--memory", default="3GB")
    parser.add_argument("--kill", type=int, default=3)
    parser.add_argument("--port", type=int, default=8977)
    parser.add_argument("--option", action="append", default=[])
    given = parser.parse_args()
    names = [each.partition("=")[0] for each in given.models]
    with tempfile.TemporaryDirectory() as prefixes:
        own = [*given.option, "--prefix-dir", prefixes]
        wanted = {}
        for name, model in zip(names, given.models, strict=True):
            with served([model], [*own, "--keep-alive", "-1"], given.port) as alone:
                wanted |= {(name, prompt): ask(alone.url, name, prompt) for prompt in PROMPTS}
        with served(given.models, [*own, "--memory", given.memory], given.port) as server:
            swaps = [first_token_s(server.url, names[count % len(names)]) for count in range(SWAPS)]
            chosen = random.Random(0)
            asked = [(chosen.choice(names), chosen.choice(PROMPTS)) for _ in range(given.requests)]
            wrong, begun_s = list[tuple[str, str]](), time.perf_counter()
            step = len(asked) // (given.kill + 1)
            with ThreadPoolExecutor(CLIENTS) as pool:
                for first in range(0, len(asked), step):
                    texts = [pool.submit(ask, server.url, *each) for each in asked[first : first + step]]
                    if first + step < len(asked):
                        while sum(each.done() for each in texts) < step // 2:
                            time.sleep(0.01)
                        server.kill()
                    pairs = zip(asked[first : first + step], texts, strict=True)
                    wrong += [key for key, text in pairs if text.result() != wanted[key]]
            took_s = time.perf_counter() - begun_s
            info = httpx2.get(f"{server.url}/server_info", timeout=60, trust_env=False).json()
    report = {
        "requests": len(asked),
        "wrong": len(wrong),
        "kills": given.kill,
        "seconds": round(took_s, 1),
        "memory": given.memory,
        "most_resident_gb": round(server.most_bytes / 1e9, 2),
        "swap_to_first_token_s": [round(each, 2) for each in swaps],
        "median_swap_s": round(statistics.median(swaps[len(names) :]), 2),
        "loads_since_the_last_start": {each["model"]: each["loads"] for each in info["models"]},
    }
    print(json.dumps(report))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
