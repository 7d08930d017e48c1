"""A long conversation of an agent: the share of its repeated prefix that the server finds cached, also after kill -9.

    python benchmarks/agent_turns.py --turns 50 --tokens 20000 --kill 17,34

The benchmark starts a server. Its model has random weights, and its answers are scripted. Each request of the
benchmark adds a tool call and its result to the message history and repeats the whole history; the first prompt has
about --tokens tokens. The time to the first token is compared with that of a prompt of ids which ends, after the same
beginning, with as many other new tokens: the same computation without templates, tools and text.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import httpx2
from tests.ports import unused_port
from tests.serve.scripted import CONTEXT, call, save_scripted_model

from tokenmill.bench.load_report import EventStream
from tokenmill.prove.agent.check import common_length

ROOT = Path(__file__).parents[1]
READ = {
    "name": "read_file",
    "description": "Read a part of a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "first": {"type": "integer"}},
        "required": ["path", "first"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": READ}]
SIZES = {
    "tiny": {},
    "smollm2-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
}


class Server:
    """A process that serves the model, and can be killed and started again."""

    def __init__(self, folder: Path, model: str, answers: list[str], max_length: int, name: str = "agent") -> None:
        self._script = folder / "answers.json"
        self._script.write_text(json.dumps(answers), encoding="utf-8")
        self._port = unused_port()
        self.url = f"http://127.0.0.1:{self._port}"
        lengths = ("--max-length", str(max_length), "--cache-tokens", str(3 * max_length), "--max-sequences", "2")
        kept = (
            "--prefix-dir",
            str(folder / "prefixes"),
            "--session-dir",
            str(folder),
            "--batch-dir",
            str(folder / "b"),
        )
        more = ("--served-model-name", name, "--port", str(self._port), "--quiet")
        self._command = [sys.executable, "-m", "tests.serve.scripted", model, str(self._script), *lengths, *kept, *more]
        self.start()

    def start(self) -> float:
        """Start it; the seconds until it answers."""
        (Path(self._script.parent) / "prefixes").mkdir(exist_ok=True)
        begun_s = time.perf_counter()
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self._process = subprocess.Popen(self._command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths})
        while True:
            with suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/ready", trust_env=False).status_code == 200:
                    return time.perf_counter() - begun_s
            if self._process.poll() is not None:
                raise SystemExit("the server has ended")
            time.sleep(0.05)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


class Client:
    """Streams answers, and notes when the first token came."""

    def __init__(self, url: str) -> None:
        self.http = httpx2.Client(base_url=url, timeout=3600, trust_env=False)

    def stream(self, path: str, body: dict) -> tuple[float, list[dict]]:
        """The seconds to the first token, and all events."""
        events, found, first_s = EventStream(), [], None
        asked = {**body, "model": "agent", "stream": True, "stream_options": {"include_usage": True}}
        begun_s = time.perf_counter()
        with self.http.stream("POST", path, json=asked) as answer:
            if answer.status_code != 200:
                raise SystemExit(answer.read().decode())
            for block in answer.iter_bytes():
                for data in events.feed(block):
                    if data != b"[DONE]":
                        found.append(json.loads(data))
                        if first_s is None and any(each.get("token_ids") for each in found[-1]["choices"]):
                            first_s = time.perf_counter() - begun_s
        if first_s is None:
            raise SystemExit(f"no token came: {found[-2:]}")
        return first_s, found


def answer_of(events: list[dict]) -> tuple[dict, list[int], list[int], dict]:
    """The message, the ids of the prompt and of the answer, and the usage."""
    message, ids, calls = {"role": "assistant", "content": ""}, [], {}
    for event in events:
        for choice in event["choices"]:
            ids += choice.get("token_ids") or []
            message["content"] += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls") or ():
                made = calls.setdefault(
                    piece["index"], {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
                )
                made["id"] = made["id"] or piece.get("id") or ""
                for name, text in (piece.get("function") or {}).items():
                    made["function"][name] += text or ""
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    prompt = next(event["prompt_token_ids"] for event in events if event.get("prompt_token_ids"))
    return message, prompt, ids, events[-1]["usage"]


def text_of(words: int, chance: random.Random) -> str:
    """Text that looks like that of files: lines out of the documents, in any order."""
    lines = [line for path in sorted((ROOT / "docs").glob("*.md")) for line in path.read_text().splitlines() if line]
    found: list[str] = []
    while sum(len(line.split()) for line in found) < words:
        found.append(chance.choice(lines))
    return "\n".join(found)


def run(arguments: argparse.Namespace, folder: Path) -> list[dict]:
    chance = random.Random(5)
    model = save_scripted_model(str(folder / "model"), CONTEXT, **SIZES[arguments.size])
    answers = [
        "I read on.\n" * (turn % 3 == 0) + call("read_file", path=f"src/part{turn}.py", first=turn)
        for turn in range(arguments.turns)
    ]
    server = Server(folder, model, answers, arguments.max_length)
    client, rows, texts = Client(server.url), [], []
    kills = {int(turn) for turn in arguments.kill.split(",") if turn}
    system = {"role": "system", "content": text_of(arguments.tokens // 3, chance)}
    messages = [system, {"role": "user", "content": "Find the fault."}]
    try:
        for turn in range(arguments.turns):
            started_s = None
            if turn in kills:
                server.kill()
                started_s = server.start()
            alone_s = None
            if texts:
                alone_s = alone(client, texts[-1], rows[-1]["new"] if turn > 1 else arguments.new, chance)
            body = {"messages": messages, "tools": TOOLS, "max_tokens": 200, "return_token_ids": True}
            first_s, events = client.stream("/v1/chat/completions", body)
            message, prompt, ids, usage = answer_of(events)
            stood = max((common_length(prompt, text) for text in texts), default=0)
            found = usage["prompt_tokens_details"]["cached_tokens"]
            rows.append(
                {"turn": turn + 1, "prompt": len(prompt), "stood": stood, "found": found, "new": len(prompt) - stood}
                | {"first_s": first_s, "alone_s": alone_s, "started_s": started_s}
            )
            tell(rows[-1])
            texts.append([*prompt, *ids])
            result = text_of(arguments.new // 3, chance)
            messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": result}]
    finally:
        client.http.close()
        server.kill()
    return rows


def alone(client: Client, before: list[int], num_new: int, chance: random.Random) -> float:
    """The seconds to the first token of a prompt of ids: what stood before, and as many new tokens as a turn has."""
    new = [chance.randrange(300, 1900) for _ in range(num_new)]
    body = {"prompt": [*before, *new], "max_tokens": 1, "return_token_ids": True}
    return client.stream("/v1/completions", body)[0]


def tell(row: dict) -> None:
    again = row["stood"] - row["found"]
    alone_ms = f"{1e3 * row['alone_s']:6.0f}" if row["alone_s"] else "     -"
    after = f"  after kill -9 ({row['started_s']:.1f} s to start)" if row["started_s"] else ""
    print(
        f"{row['turn']:4} {row['prompt']:7,} {row['stood']:7,} {row['found']:7,} {again:5} {row['new']:6,} "
        f"{1e3 * row['first_s']:8.0f} {alone_ms}{after}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=20_000, help="of the first prompt, about")
    parser.add_argument("--new", type=int, default=400, help="tokens of each result, about")
    parser.add_argument("--kill", default="17,34", help="turns before which the server is killed, counted from 0")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--max-length", type=int, default=60_000)
    arguments = parser.parse_args()
    print("turn  prompt   stood   found again    new first ms  alone ms")
    with tempfile.TemporaryDirectory() as folder:
        rows = run(arguments, Path(folder))
    stood, found = (sum(row[name] for row in rows[1:]) for name in ("stood", "found"))
    ratios = [row["first_s"] / row["alone_s"] for row in rows if row["alone_s"]]
    print(f"found: {100 * found / stood:.3f} % of {stood:,} tokens that stood before, in {len(rows)} turns")
    print(f"first token: median {statistics.median(ratios):.2f} times that of the new tokens alone")


if __name__ == "__main__":
    main()
