"""One process with two threads against two ranks with one thread each: memory, decoding, prefill, 16 sequences.

    python benchmarks/ranks.py                             # SmolLM2-135M as it was published, and in bfloat16
    python benchmarks/ranks.py --shape tinyllama-1.1b      # random weights, which are written to a temporary folder

Both engines are loaded, and take turns; the ratio of each round counts, not the times. Texts must be equal. Memory is
what a process would give back if it ended (PSS: shared pages are divided among those that map them), less what a
process has that has only imported torch.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

import tokenmill
from tokenmill.bench.shapes import SHAPES
from tokenmill.model.families import find_family, read_config
from tokenmill.parallel import ranks
from tokenmill.weights.names import expected_tensors

IMPORT = "import torch, time, sys; import tokenmill.loader.load_model; print('ready', flush=True); time.sleep(60)"


def pss(pid: int) -> int:
    """Bytes of memory of a process, its part of what is shared."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


def children() -> list[int]:
    """The ranks of this process."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if ranks.MODULE.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def without_model() -> int:
    """What a process takes before it loads anything."""
    with subprocess.Popen([sys.executable, "-c", IMPORT], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = pss(process.pid)
        process.kill()
    return found


def memory_of(model: str, count: int, settings: dict[str, object]) -> list[int]:
    """Bytes of each rank after some tokens, in a process of its own."""
    code = (
        "import sys, tokenmill, json\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import os, ranks\n"
        f"engine = tokenmill.load({model!r}, tensor_parallel={count}, threads={2 // count}, **{settings!r})\n"
        "engine.generate(list(range(3, 300)), max_new_tokens=20, ignore_eos=True)\n"
        "print(json.dumps([ranks.pss(os.getpid()), *map(ranks.pss, ranks.children())]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    found: list[int] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_random(shape: str, folder: Path) -> None:
    """A directory with random weights in bfloat16."""
    config = SHAPES[shape]
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.empty(size, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
        for name, (_, size) in expected_tensors(find_family(config), read_config(config)).items()
    }
    save_file(tensors, folder / "model.safetensors")


def decode(engine: tokenmill.Engine, num: int) -> tuple[float, str]:
    done = engine.generate([3, 4, 5, 6], max_new_tokens=num, ignore_eos=True)
    return done.timing.tokens_per_s, done.hash


def prefill(engine: tokenmill.Engine, seed: int) -> tuple[float, str]:
    tokens = torch.randint(3, 30000, (512,), generator=torch.Generator().manual_seed(seed)).tolist()
    begin = time.perf_counter()
    done = engine.generate(tokens, max_new_tokens=1)
    return 512 / (time.perf_counter() - begin), done.hash


def many(engine: tokenmill.Engine, num: int) -> tuple[float, str]:
    prompts = [[3, 4, 5, 6 + each] for each in range(16)]
    begin = time.perf_counter()
    done = engine.generate(prompts, max_new_tokens=num, ignore_eos=True)
    return 16 * num / (time.perf_counter() - begin), " ".join(each.hash for each in done)


def compare(one: tokenmill.Engine, two: tokenmill.Engine, rounds: int) -> None:
    ways: dict[str, Callable[[tokenmill.Engine, int], tuple[float, str]]] = {
        "one sequence, 64 tokens": lambda engine, turn: decode(engine, 64),
        "prefill of 512 tokens": prefill,
        "16 sequences, 24 tokens": lambda engine, turn: many(engine, 24),
    }
    for name, way in ways.items():
        ratios, speeds = [], list[tuple[float, float]]()
        for turn in range(rounds):
            found = [way(engine, turn) for engine in ((one, two) if turn % 2 else (two, one))]
            (single, text), (ranked, same) = found if turn % 2 else found[::-1]
            assert text == same, "two ranks say something else than one process"
            ratios.append(ranked / single)
            speeds.append((single, ranked))
        single, ranked = (statistics.median(each) for each in zip(*speeds, strict=True))
        ratio = statistics.median(ratios)
        print(f"  {name:26}{single:9.1f} tokens/s in one process{ranked:9.1f} in two ranks   ratio {ratio:.3f}")


def report(name: str, model: str, rounds: int, **settings: object) -> None:
    print(name)
    base = without_model()
    single, double = (memory_of(model, count, settings) for count in (1, 2))
    alone, ranked = single[0] - base, [each - base for each in double]
    parts = " + ".join(f"{each / 1e6:.0f}" for each in ranked)
    print(f"  memory beyond {base / 1e6:.0f} MB of Python and torch: {alone / 1e6:.0f} MB in one process,", end=" ")
    print(f"{parts} MB in two ranks, {sum(ranked) / alone:.2f} times")
    how = {"prefix_cache": False, "max_sequences": 16, "speculate": "multi_step", **settings}
    engines = [tokenmill.load(model, tensor_parallel=count, threads=2 // count, **how) for count in (1, 2)]
    compare(engines[0], engines[1], rounds)
    for engine in engines:
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES))
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    if given.shape is None:
        report("smollm2-135m, Q4_1 as published", "smollm2-135m", given.rounds)
        report("smollm2-135m, bfloat16", "smollm2-135m", given.rounds, scheme="dense", dtype="bfloat16")
        return
    with tempfile.TemporaryDirectory() as folder:
        write_random(given.shape, Path(folder))
        report(f"{given.shape}, random, bfloat16", folder, given.rounds)
        report(
            f"{given.shape}, random, q4 (packed by each rank)", folder, given.rounds, scheme="q4", packed_cache=False
        )


if __name__ == "__main__":
    main()
