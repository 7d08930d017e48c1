"""`tokenmill prove` against our server, and in the same run against others: one after the other, with restarts.

    python benchmarks/prove.py [--comparisons 100000 --tiny] [--output FILE]
    python benchmarks/prove.py --llama-cpp PYTHON --gguf FILE --vllm FOLDER/bin/vllm --directory MODEL [--output FILE]
    python benchmarks/prove.py --other 'NAME=COMMAND with {port}'

Every server has --threads threads, and its own defaults otherwise. It is asked for as many comparisons as --comparisons
says, in at most --requests requests and --time seconds. PYTHON is an interpreter that can import xllamacpp, a wheel
that contains llama.cpp's server. --tiny makes a model of random weights that reads bytes: many comparisons in little
time.
Prints a table in Markdown: of how many texts how many differ. Exit code 1 if a text of ours does. FILE gets a row for
each server, of which benchmarks/tables.py makes the tables of docs/promise.md.
"""

import argparse
import asyncio
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from server import MAX_LENGTH, MODEL, PEER

from tokenmill.bench.rows import VERSION, append_row, provenance
from tokenmill.cli.process.display import progress_on_stderr, remark
from tokenmill.prove.report import document, examples, notes, rows
from tokenmill.prove.run import ProofOutcome, prove
from tokenmill.prove.settings import Settings
from tokenmill.registry import PROOFS, help_of

PORT, SLOTS = 18090, 16
READY_S = 900


@dataclass
class Contender:
    """A server that can be started, restarted and ended. command: with {port}."""

    name: str
    command: list[str]
    port: int
    environment: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def restart(self) -> None:
        """End the server, if there is one, and wait until the new one answers."""
        self.end()
        words = [word.replace("{port}", str(self.port)) for word in self.command]
        environment = {**os.environ, **self.environment}
        self.child = subprocess.Popen(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for _ in range(READY_S * 5):
            await asyncio.sleep(0.2)
            if self.child.poll() is not None:
                raise SystemExit(f"{self.name} ended with {self.child.returncode}: {shlex.join(words)[:200]}")
            try:
                urlopen(f"{self.url}/v1/models", timeout=1).close()
            except OSError:
                continue
            return
        raise SystemExit(f"{self.name} does not answer after {READY_S} s")

    def end(self) -> None:
        if self.child is not None:
            self.child.terminate()
            try:
                self.child.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.child.pid, signal.SIGKILL)  # its group is its own
                self.child.wait()
            self.child = None


def ours(options: argparse.Namespace, folder: Path) -> Contender:
    model = options.model
    if options.tiny:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from tests.byte_model import save_byte_model

        model = str(save_byte_model(folder / "tiny", std=0.04, hidden_size=96, intermediate_size=200))
    command = [sys.executable, "-m", "tokenmill", "serve", model, "--port", "{port}", "--quiet"]
    command += ["--threads", str(options.threads), "--max-length", str(1024 if options.tiny else MAX_LENGTH)]
    command += ["--max-sequences", str(SLOTS), "--max-queued-requests", "256", "--prefix-dir", str(folder / "prefixes")]
    return Contender("tokenmill", command, PORT)


def version_of(package: str, python: Path) -> dict[str, str]:
    """The version of a package in another environment."""
    asked = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True)
    return {package: done.stdout.strip()}


def contenders(options: argparse.Namespace, folder: Path) -> list[Contender]:
    """Ours, and those that are asked for."""
    found = [ours(options, folder)]
    if options.llama_cpp:
        numbers = ["{port}", str(SLOTS), str(options.threads), str(MAX_LENGTH)]
        peer = [options.llama_cpp, "-c", PEER, str(options.gguf), *numbers]
        version = version_of("xllamacpp", Path(options.llama_cpp))
        found.append(Contender("llama.cpp", peer, PORT + 1, versions=version))
        peer = [word.replace("server =", "p.cache_prompt = False; server =") for word in peer]
        found.append(Contender("llama.cpp, cache_prompt off", peer, PORT + 3, versions=version))
    if options.vllm:
        threads = {"OMP_NUM_THREADS": str(options.threads), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        cache = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        command = [options.vllm, "serve", str(options.directory), "--port", "{port}"]
        command += [
            "--max-model-len",
            str(MAX_LENGTH),
            "--max-num-seqs",
            str(SLOTS),
            *shlex.split(options.vllm_options),
        ]
        version = version_of(options.vllm_package, Path(options.vllm).parent / "python")
        found.append(Contender("vLLM", command, PORT + 2, threads | cache, version))
    for place, each in enumerate(options.other):
        name, _, command = each.partition("=")
        found.append(Contender(name, shlex.split(command), PORT + 4 + place))
    return [each for each in found if options.only is None or each.name in options.only]


def check(contender: Contender, options: argparse.Namespace) -> ProofOutcome:
    """The outcome for one server, which is started before and ended afterwards."""
    settings = Settings(
        url=contender.url,
        requests=options.requests,
        comparisons=options.comparisons,
        time_s=options.time,
        concurrency=options.concurrency,
        max_tokens=options.max_tokens,
        seed=options.seed,
        logprobs=options.logprobs,
        cases=tuple(options.case),
    )
    try:
        asyncio.run(contender.restart())
        with progress_on_stderr() as progress:
            progress.stage(contender.name)
            return prove(settings, contender.restart, progress)
    finally:
        contender.end()


def cell(outcome: ProofOutcome, case: str) -> str:
    (tally,) = [each for each in outcome.tallies if each.name == case] or [None]
    if tally is None or not tally.total.comparisons:
        return "not offered" if tally is not None and tally.not_offered else ""
    shown = f"{tally.total.differ:,} of {tally.total.comparisons:,}"
    if tally.num_failed:
        shown += f", {tally.num_failed:,} failed"
    if (first := tally.first()) is not None:
        shown += f" (from {first[0]} {first[2]})"
    return shown


def table(outcomes: dict[str, ProofOutcome]) -> str:
    """Markdown: a row for each case, a column for each server."""
    lines = ["| " + " | ".join(["case", *outcomes]) + " |", "|---" * (len(outcomes) + 1) + "|"]
    for name, entry in PROOFS.items():
        lines.append("| " + " | ".join([help_of(entry), *(cell(each, name) for each in outcomes.values())]) + " |")
    totals = [
        f"{sum(t.total.differ for t in each.tallies):,} of {each.num_comparisons:,}" for each in outcomes.values()
    ]
    lines.append("| " + " | ".join(["all", *totals]) + " |")
    if any(tally.logprobs.comparisons for each in outcomes.values() for tally in each.tallies):
        counts = [[tally.logprobs for tally in each.tallies] for each in outcomes.values()]
        shown = [f"{sum(c.differ for c in each):,} of {sum(c.comparisons for c in each):,}" for each in counts]
        lines.append("| " + " | ".join(["log-probabilities, as bits", *shown]) + " |")
    return "\n".join(lines)


def row_of(contender: Contender, found: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The row of one server, without what only this machine knows, and with the first example of each case."""
    cases = [{**each, "examples": each["examples"][:1]} for each in found["cases"]]
    model = "random weights" if options.tiny else Path(options.model).name
    if contender.name == "vLLM":
        model = f"{MODEL}, bfloat16"
    head = {"version": VERSION, "kind": "prove", "label": contender.name, "model": model, "threads": options.threads}
    left_out = {"url", "date", "tokenmill", "notes", "model"}
    return (
        head
        | {key: value for key, value in found.items() if key not in left_out}
        | {
            "cases": cases,
            "versions": contender.versions,
            **provenance(),
        }
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", action="append", metavar="NAME", help="this server alone; may be repeated")
    parser.add_argument("--llama-cpp", metavar="PYTHON")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--vllm", metavar="PROGRAM")
    parser.add_argument("--vllm-options", default="")
    parser.add_argument("--vllm-package", default="vllm-cpu", help="the name under which it was installed")
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--other", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--comparisons", type=int)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--time", type=float, default=3600.0)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=39)
    parser.add_argument("--logprobs", action="store_true")
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    outcomes: dict[str, ProofOutcome] = {}
    with TemporaryDirectory() as folder:
        for contender in contenders(options, Path(folder)):
            outcome = outcomes[contender.name] = check(contender, options)
            for line in (
                *map("  ".join, rows(outcome)),
                *examples(outcome),
                *(f"note: {each}" for each in notes(outcome)),
            ):
                remark(line)
            if options.output:
                append_row(options.output, row_of(contender, document(outcome), options))
            if outcome.interrupted:
                break
    print(table(outcomes))
    if (own := outcomes.get("tokenmill")) is not None and (
        own.num_differences or own.num_failed or own.compared_nothing
    ):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
