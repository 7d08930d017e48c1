"""`tokenmill batch` against engine.generate and other engines' offline forms: the same rows, by turns, in one run.

    python benchmarks/batch.py [--rows 64] [--rounds 5] [--sequences 16] [--llama PYTHON --gguf FILE] [--vllm PYTHON]
        [--json FILE]

In each round every contender answers the same new rows. Rows come from the project's documents, of different lengths,
as token ids. A batch reads its input, journals each answer and writes its output; engine.generate has a list in memory.
Both use one engine; the prefix cache is emptied between them. Their texts must be the same, or it ends with exit
code 1. Prints new tokens per second as medians over the rounds, and the ratio of a batch to each other one in a round.
--llama is an interpreter that can import xllamacpp (`tokenmill bench install-peer xllamacpp` makes one), whose
llama.cpp server is called without HTTP, with as many rows at once as --sequences says; --vllm is one that can import
vllm.
"""

import argparse
import json
import random
import statistics
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenmill
from tokenmill.batches.batch import opened
from tokenmill.batches.template import TEXT, TableTask
from tokenmill.bench.rows import provenance
from tokenmill.settings.sampling_params import SamplingParams

MODEL, MAX_LENGTH = "smollm2-135m", 512
WIRE = """
def serve(version, answer):
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        begun = time.perf_counter()
        count = answer(json.loads(line))
        print(json.dumps({"seconds": time.perf_counter() - begun, "tokens": count}), flush=True)
"""
LLAMA = f"""
import json, os, sys, time
from concurrent.futures import ThreadPoolExecutor
told, sys.stdout = sys.stdout, sys.stderr
import xllamacpp as x
path, slots, threads, context, new = sys.argv[1], *map(int, sys.argv[2:])
p = x.CommonParams()
p.model.path, p.n_parallel, p.n_ctx, p.warmup, p.n_gpu_layers = path, slots, slots * context, True, 0
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
server = x.Server(p)
sys.stdout = told
{WIRE}
def ask(ids):
    last = {{}}
    request = dict(prompt=ids, n_predict=new, temperature=0.0, ignore_eos=True, cache_prompt=False, stream=True)
    server.handle_completions(request, last.update)
    return last["usage"]["completion_tokens"]
with ThreadPoolExecutor(slots) as pool:
    serve(x.__version__, lambda rows: sum(pool.map(ask, rows)))
"""
VLLM = f"""
import json, sys, time
told, sys.stdout = sys.stdout, sys.stderr
import vllm
path, slots, threads, context, new = sys.argv[1], *map(int, sys.argv[2:])
engine = vllm.LLM(path, max_model_len=context, max_num_seqs=slots, enable_prefix_caching=False)
settings = vllm.SamplingParams(temperature=0, max_tokens=new, ignore_eos=True)
sys.stdout = told
{WIRE}
def ask(rows):
    done = engine.generate([dict(prompt_token_ids=ids) for ids in rows], settings, use_tqdm=False)
    return sum(len(each.outputs[0].token_ids) for each in done)
serve(vllm.__version__, ask)
"""
Rows = list[list[int]]


class Ours:
    """One engine, as a batch over files and as a list in memory."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.engine = tokenmill.load(options.model, max_length=MAX_LENGTH, max_sequences=options.sequences)
        self.params = SamplingParams(max_new_tokens=options.new, ignore_eos=True)
        self.folder, self.texts = folder, {}

    def batch(self, rows: Rows) -> tuple[float, int]:
        """The seconds of a batch, from the first reading of its input to its output, and its new tokens."""
        source, target = self.folder / "in.jsonl", self.folder / "out.jsonl"
        target.unlink(missing_ok=True)
        source.write_text("".join(f"{json.dumps({'ids': ids})}\n" for ids in rows))
        self.engine.core.clear_prefix_cache()
        begun_s = time.perf_counter()
        with opened(source, target, TableTask(lambda _: self.params, column="ids")) as batch:
            tokens = batch.run(self.engine.core).tokens
        seconds = time.perf_counter() - begun_s
        self.texts["batch"] = [json.loads(line)[TEXT] for line in target.read_text().splitlines()]
        return seconds, tokens

    def generate(self, rows: Rows) -> tuple[float, int]:
        """The seconds of engine.generate, and its new tokens."""
        self.engine.core.clear_prefix_cache()
        begun_s = time.perf_counter()
        done = self.engine.generate(rows, self.params)
        self.texts["generate"] = [each.text for each in done]
        return time.perf_counter() - begun_s, sum(len(each.tokens) for each in done)


class Peer:
    """Another engine, in an interpreter of its own."""

    def __init__(self, python: str, program: str, model: str, options: argparse.Namespace) -> None:
        numbers = [options.sequences, options.threads, MAX_LENGTH, options.new]
        command = [python, "-c", program, model, *map(str, numbers)]
        self.child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.version = self._read()["version"]

    def __call__(self, rows: Rows) -> tuple[float, int]:
        assert self.child.stdin is not None
        self.child.stdin.write(f"{json.dumps(rows)}\n")
        self.child.stdin.flush()
        answer = self._read()
        return answer["seconds"], answer["tokens"]

    def close(self) -> None:
        self.child.terminate()
        self.child.wait(30)

    def _read(self) -> dict[str, Any]:
        """Its next line of JSON; some print lines of their own, too."""
        assert self.child.stdout is not None
        for line in self.child.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise SystemExit(f"the other engine ended with {self.child.wait(30)}")


def rows_of(ours: Ours, options: argparse.Namespace) -> list[Rows]:
    """The rows of every round: pieces of the documents of 32 to 160 tokens, each used once."""
    root = Path(__file__).parents[1]
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(root.glob("docs/**/*.md")))
    pieces = [text[start : start + 4000] for start in range(0, len(text), 4000)]
    tokens = [token for piece in pieces for token in ours.engine.tokenizer.encode(piece)]
    lengths, at = random.Random(39), 0
    found = []
    for _ in range(options.rounds + 1):
        rows = []
        for _ in range(options.rows):
            length = lengths.randint(32, 160)
            rows.append(tokens[at : at + length])
            at += length
        found.append(rows)
    if at > len(tokens):
        raise SystemExit("the documents are too short for so many rows: fewer --rounds or --rows")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp; ours are the cores")
    parser.add_argument("--llama", help="an interpreter that can import xllamacpp")
    parser.add_argument("--gguf", help="the file for it; it must be the model's")
    parser.add_argument("--vllm", help="an interpreter that can import vllm")
    parser.add_argument("--vllm-model", help="the model's directory for it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        measure(options, Path(folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """All rounds, and the table."""
    ours = Ours(options, folder)
    contenders: dict[str, Any] = {"batch": ours.batch, "generate": ours.generate}
    if options.llama:
        contenders["llama.cpp"] = Peer(options.llama, LLAMA, options.gguf, options)
    if options.vllm:
        contenders["vllm"] = Peer(options.vllm, VLLM, options.vllm_model, options)
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number, rows in enumerate(rows_of(ours, options)):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            seconds, tokens = contenders[name](rows)
            rates[name] += [tokens / seconds] if number else []  # the first is not counted
        if ours.texts["batch"] != ours.texts["generate"]:
            raise SystemExit(f"batch and generate give other texts, round {number}")
    found = {}
    print("contender    tokens/s   batch over it   least to most")
    for name, each in rates.items():
        ratios = [one / other for one, other in zip(rates["batch"], each, strict=True)]
        found[name] = {"tokens_per_s": statistics.median(each), "batch_over_it": statistics.median(ratios)}
        print(
            f"{name:10} {found[name]['tokens_per_s']:10.1f} {found[name]['batch_over_it']:15.3f} "
            f"{min(ratios):7.3f} to {max(ratios):.3f}"
        )
    versions = {name: each.version for name, each in contenders.items() if isinstance(each, Peer)}
    if options.json:
        about = {"settings": {k: str(v) for k, v in vars(options).items()}, "peers": versions, **provenance()}
        options.json.write_text(json.dumps({**about, "contenders": found}, indent=1))
    for each in contenders.values():
        if isinstance(each, Peer):
            each.close()


if __name__ == "__main__":
    main()
