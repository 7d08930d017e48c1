"""`tokenmill serve` against the library, and against llama.cpp's server: the same file, prompts and threads, by turns.

    python benchmarks/server.py [--clients 1,8,16] [--rounds 5] [--peer PYTHON] [--json FILE]

In each round every contender answers the same new prompts, so many at a time. Prefix caches are on, as they are in a
server, and find nothing, since no prompt comes twice. The texts of server and library must be the same, or it ends with
exit code 1. Prints new tokens per second of all together, and the 95th percentile of the time to the first token, as
medians over the rounds, and the ratios of each contender to the server within a round.
PYTHON is an interpreter that can import xllamacpp, whose server is llama.cpp's.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import tokenmill
from tokenmill.bench.rows import provenance
from tokenmill.settings.sampling_params import SamplingParams

MODEL, MAX_LENGTH = "smollm2-135m", 2048
PEER = """
import sys, time, xllamacpp as x
path, port, slots, threads, context = sys.argv[1], *map(int, sys.argv[2:])
p = x.CommonParams()
p.model.path, p.port, p.n_parallel, p.n_ctx, p.warmup, p.n_gpu_layers = path, port, slots, slots * context, True, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
server = x.Server(p)
print(server.listening_address, x.get_system_info() if hasattr(x, "get_system_info") else "", flush=True)
time.sleep(1e6)
"""


@dataclass
class Answers:
    """The answers of one contender in one round."""

    seconds: float
    texts: list[Any] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def p95_ms(self) -> float:
        ordered = sorted(self.first_s)
        return 1e3 * ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


class Prompts:
    """Pieces of the project's own documents, each used once."""

    def __init__(self, options: argparse.Namespace) -> None:
        files = [*sorted(Path(__file__).parents[1].glob("docs/*.md")), *sorted(Path(__file__).parents[1].glob("*.md"))]
        vocabulary = tokenmill.load(options.model, max_length=options.prompt + 1)
        self._tokens = vocabulary.encode("\n".join(file.read_text(encoding="utf-8") for file in files))
        self._length, self._at = options.prompt, 0
        vocabulary.close()

    def take(self, count: int) -> list[list[int]]:
        """So many that nobody has seen."""
        if self._at + count * self._length > len(self._tokens):
            raise SystemExit("the documents are too short for so many prompts: fewer --rounds or --each")
        starts = range(self._at, self._at + count * self._length, self._length)
        self._at += count * self._length
        return [self._tokens[start : start + self._length] for start in starts]


class Library:
    """The engine in this process, which queues all prompts at once."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.engine = tokenmill.load(
            options.model,
            max_length=MAX_LENGTH,
            max_sequences=16,
            cache_tokens=16 * MAX_LENGTH,
            block_size=32,
            prefix_dir=None if options.no_disk else str(Path(options.folder) / "library"),
        )

    def run(self, prompts: list[list[int]], clients: int, new: int) -> Answers:
        core, begun_s = self.engine.core, time.perf_counter()
        waiting, live, done = list(enumerate(prompts)), {}, {}
        first: dict[int, float] = {}
        while waiting or live:
            while waiting and len(live) < clients:
                number, prompt = waiting.pop(0)
                request = core.request(prompt, SamplingParams(max_new_tokens=new, ignore_eos=True))
                core.submit(request)
                live[number] = request, time.perf_counter()
            core.step()
            found = core.call(lambda: [(number, *each, core.take(each[0])) for number, each in live.items()])
            for number, _, asked_s, pieces in found:
                for piece in pieces:
                    first.setdefault(number, time.perf_counter() - asked_s)
                    if piece.done is not None:
                        done[number] = piece.done
                        del live[number]
        seconds = time.perf_counter() - begun_s
        count = sum(len(each.tokens) for each in done.values())
        return Answers(seconds, [done[n].text for n in range(len(prompts))], list(first.values()), count)


class Served:
    """A server at a port, asked for streams by a client that reads bytes and parses them afterwards."""

    def __init__(self, port: int, streams: bool = True) -> None:
        self.port, self.streams = port, streams

    def run(self, prompts: list[list[int]], clients: int, new: int) -> Answers:
        return asyncio.run(self._run(prompts, clients, new))

    async def _run(self, prompts: list[list[int]], clients: int, new: int) -> Answers:
        queue, found = list(enumerate(prompts))[::-1], {}
        begun_s = time.perf_counter()

        async def client() -> None:
            while queue:
                number, prompt = queue.pop()
                found[number] = await self._ask(prompt, new)

        await asyncio.gather(*(client() for _ in range(clients)))
        answers = Answers(time.perf_counter() - begun_s)
        for number in range(len(prompts)):
            first_s, text, count = found[number]
            answers.texts.append(text)
            answers.first_s.append(first_s)
            answers.num_tokens += count
        return answers

    async def _ask(self, prompt: list[int], new: int) -> tuple[float, str, int]:
        options: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
        options |= {"stream": True, "stream_options": {"include_usage": True}} if self.streams else {}
        body = json.dumps({"prompt": prompt, "max_tokens": new, **options}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        begun_s, first_s, received = time.perf_counter(), 0.0, b""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        while part := await reader.read(65536):
            received += part
            if not first_s and b'"text"' in received:
                first_s = time.perf_counter() - begun_s
        writer.close()
        return first_s, *text_of(received)


def text_of(received: bytes) -> tuple[str, int]:
    """The text of a stream and its number of tokens, out of the bytes of a chunked response."""
    head, _, rest = received.partition(b"\r\n\r\n")
    if b" 200 " not in head.split(b"\r\n")[0]:
        raise SystemExit(received.decode())
    data = b""
    while rest and b"chunked" in head.lower():
        size, _, rest = rest.partition(b"\r\n")
        data, rest = data + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    if not (data or rest).startswith(b"data:"):
        whole = json.loads(data or rest)
        return whole["choices"][0]["text"], whole["usage"]["completion_tokens"]
    events = [json.loads(line[6:]) for line in (data or rest).split(b"\n") if line.startswith(b"data: {")]
    usage = [event["usage"]["completion_tokens"] for event in events if event.get("usage")]
    return "".join(c["text"] for event in events for c in event["choices"]), usage[-1]


@contextmanager
def process(command: list[str], port: int, path: str) -> Iterator[None]:
    """A server, until the end of the context."""
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            time.sleep(0.1)
            if child.poll() is not None:
                raise SystemExit(f"{command[0]} ended with {child.returncode}")
            try:
                urlopen(f"http://127.0.0.1:{port}{path}", timeout=1).close()
            except OSError:
                continue
            break
        yield
    finally:
        child.terminate()
        child.wait(30)


def our_command(options: argparse.Namespace, port: int) -> list[str]:
    more = ["--no-generation-config", "--max-length", str(MAX_LENGTH), "--quiet"]
    # A directory that nobody can write into keeps no blocks.
    more += ["--prefix-dir", "/sys" if options.no_disk else str(Path(options.folder) / "server")]
    return [sys.executable, "-m", "tokenmill", "serve", options.model, "--port", str(port), *more]


def compare(contenders: dict[str, Any], clients: int, unused: Prompts, options: argparse.Namespace) -> dict[str, Any]:
    """Rounds by turns; the row of this number of clients."""
    found: dict[str, list[Answers]] = {name: [] for name in contenders}
    for number in range(-1, options.rounds):  # the first is not counted
        prompts = unused.take(clients * options.each)
        names = list(contenders)[:: 1 if number % 2 else -1]
        answers = {name: contenders[name].run(prompts, clients, options.new) for name in names}
        if "library" in answers and answers["library"].texts != answers["server"].texts:
            raise SystemExit(f"library and server give other texts, round {number}, {clients} clients")
        for name in names if number >= 0 else ():
            found[name].append(answers[name])
    row: dict[str, Any] = {"clients": clients}
    for name, rounds in found.items():
        ratios = [one.rate / other.rate for one, other in zip(found["server"], rounds, strict=True)]
        row[name] = {
            "tokens_per_s": statistics.median(each.rate for each in rounds),
            "p95_ttft_ms": statistics.median(each.p95_ms for each in rounds),
            "server_over_it": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        }
        print(
            f"{clients:7} {name:10} {row[name]['tokens_per_s']:10.1f} {row[name]['p95_ttft_ms']:13.1f} "
            f"{row[name]['server_over_it']:15.3f} {min(ratios):7.3f} to {max(ratios):.3f}",
            flush=True,
        )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--clients", default="1,8,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", type=int, default=2, help="prompts of each client and round (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--new", type=int, default=128, help="new tokens of each answer")
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp; ours are the cores")
    parser.add_argument("--peer", help="an interpreter that can import xllamacpp")
    parser.add_argument("--gguf", help="the file for it; it must be the model's")
    parser.add_argument("--no-library", action="store_true")
    parser.add_argument("--no-disk", action="store_true", help="no blocks on disk, neither of server nor of library")
    parser.add_argument("--whole", action="store_true", help="answers in one piece, not streams")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as options.folder:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    """All numbers of clients, and the table."""
    clients = [int(each) for each in options.clients.split(",")]
    prompts = Prompts(options)
    contenders: dict[str, Any] = {} if options.no_library else {"library": Library(options)}
    print("clients contender   tokens/s   p95 ttft ms  server over it    least to most")
    with ExitStack() as stack:
        stack.enter_context(process(our_command(options, 18080), 18080, "/ready"))
        contenders["server"] = Served(18080, not options.whole)
        if options.peer:
            numbers = [18081, max(clients), options.threads, MAX_LENGTH]
            command = [options.peer, "-c", PEER, str(options.gguf), *map(str, numbers)]
            stack.enter_context(process(command, 18081, "/health"))
            contenders["llama.cpp"] = Served(18081, not options.whole)
        rows = [compare(contenders, each, prompts, options) for each in clients]
    if options.json:
        about = {"settings": {k: str(v) for k, v in vars(options).items()}, **provenance()}
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
