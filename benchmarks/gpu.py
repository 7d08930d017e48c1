"""Decoding with random weights on a GPU: programs graphs and compiled beside transformers' static cache and compile.

Run: benchmarks/gpu.sh [--device cuda] [--shapes llama-8b,llama-1b] [--engines graphs,compiled,transformers]
[--schemes dense,q8,q4] [--batches 1,8,16,32] [--depths 128,8000] [--new 64] [--limit 450] [--out FILE].
First comes the rate at which the device reads memory: the limit of decoding. An engine with its weights is a process
of its own, which tells each row when it has it: what failed, or had no time, is a line of the table. --out keeps the
rows as lines of JSON.
"""

import argparse
import json
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

SHORT, ROUNDS = 8, 3
BYTES = 2  # of bfloat16
GPT_FAST = "gpt-fast's own figures for Llama 2 7B, one sequence: int8 1.5 and int4 1.9 times its bfloat16"


def main() -> None:
    """Measure everything, or the cases of one engine in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default="llama-8b,llama-1b")
    parser.add_argument("--engines", default="graphs,compiled,transformers")
    parser.add_argument("--schemes", default="dense,q8,q4", help="of program graphs; the others have bfloat16 alone")
    parser.add_argument("--batches", default="1,8,16,32")
    parser.add_argument("--depths", default="128,8000", help="tokens of the prompts")
    parser.add_argument("--new", type=int, default=64, help="tokens that are measured")
    parser.add_argument("--limit", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--out", type=Path, help="a file for the rows, as lines of JSON")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here: --device cpu --shapes smollm2-135m tries the same code")
    if given.case is not None:
        engine, shape, scheme = given.case.split(",")
        for row in ENGINES[engine](shape, scheme, given):
            print(json.dumps(row), flush=True)
        return
    _everything(given)


def _everything(given: argparse.Namespace) -> None:
    until = time.monotonic() + given.limit
    read = read_rate(given.device)
    name = platform.processor() or platform.machine() if given.device == "cpu" else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, {given.new} new tokens behind a prompt of `depth`")
    print(f"it reads {read:,.0f} GB/s and copies {copy_rate(given.device):,.0f} GB/s\n{GPT_FAST}")
    wide = {"tokens/s": 10, "ms/step": 9, "GB/s": 8, "of read": 9, "ready s": 9}
    print(f"{'shape':<14}{'engine':<20}{'batch':>6}{'depth':>7}" + "".join(f"{each:>{wide[each]}}" for each in wide))
    for shape in given.shapes.split(","):
        for engine in given.engines.split(","):
            for scheme in given.schemes.split(",") if engine == "graphs" else ["dense"]:
                title = f"{shape:<14}{f'{engine} {scheme}':<20}"
                for row in _apart(given, f"{engine},{shape},{scheme}", until - time.monotonic()):
                    print(title + _line(row, read), flush=True)
                    if given.out is not None:
                        with given.out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps({"shape": shape, "engine": engine, "scheme": scheme} | row) + "\n")


def _line(row: dict[str, Any], read: float) -> str:
    if "failed" in row:
        return f"  {row['failed']}"
    rate, bandwidth = row["batch"] / row["step_s"], row["bytes"] / row["step_s"] / 1e9
    return (
        f"{row['batch']:>6}{row['depth']:>7,}{rate:>10,.1f}{1e3 * row['step_s']:>9.2f}{bandwidth:>8,.0f}"
        f"{bandwidth / read:>9.0%}{row['ready_s']:>9.0f}"
    )


def _apart(given: argparse.Namespace, case: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of one engine as they come, and then why it ended early, if it did."""
    names = ("device", "batches", "depths", "new")
    options = [text for name in names for text in (f"--{name}", str(getattr(given, name)))]
    command = [sys.executable, "-P", __file__, "--case", case, *options]  # our kernels.py is not their package kernels
    if seconds <= 0:
        yield {"failed": "no time left"}
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None and ran.stderr is not None
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(ran.stderr or ()), daemon=True)
        reader.start()
        ended = threading.Event()
        timer = threading.Timer(seconds, lambda: (ended.set(), ran.kill()))
        timer.start()
        for line in ran.stdout:
            if line.startswith("{"):
                yield json.loads(line)
        code = ran.wait()
        timer.cancel()
        reader.join()
    if ended.is_set():
        yield {"failed": "no time left"}
    elif code:
        yield {"failed": ([line.strip() for line in said if line.strip()] or ["it said nothing"])[-1][:150]}


def read_rate(device: str) -> float:
    """GB/s read by adding up a large tensor, the best of a few."""
    source = torch.zeros(2**32 if device == "cuda" else 2**28, dtype=torch.uint8, device=device).view(torch.int64)
    best = min(_timed(source.sum, device) for _ in range(10))
    return source.nbytes / best / 1e9


def copy_rate(device: str) -> float:
    """GB/s read and written by copying a large tensor, the best of a few."""
    source = torch.zeros(2**30 if device == "cuda" else 2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = min(_timed(lambda: target.copy_(source), device) for _ in range(10))
    return 2 * source.nbytes / best / 1e9


def _timed(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began_s


def _step_s(generate: Callable[[int], object], device: str, new: int) -> tuple[float, float]:
    """Seconds of one step of decoding: a long text less a short one. And until it was warm."""
    ready_s = _timed(lambda: (generate(SHORT), generate(SHORT + new)), device)
    steps = []
    for _ in range(ROUNDS):
        short_s = _timed(lambda: generate(SHORT), device)
        steps.append((_timed(lambda: generate(SHORT + new), device) - short_s) / new)
    return sorted(steps)[ROUNDS // 2], ready_s


def _cases(given: argparse.Namespace) -> Iterator[tuple[int, int]]:
    for depth in map(int, given.depths.split(",")):
        for batch in map(int, given.batches.split(",")):
            yield depth, batch


def _prompts(batch: int, depth: int) -> list[list[int]]:
    return [[(7 * row + place) % 1000 for place in range(depth)] for row in range(batch)]


def _ours(shape: str, scheme: str, given: argparse.Namespace, **how: Any) -> Iterator[dict[str, Any]]:
    """One engine for all cases. Prompts are found in the prefix cache from their second time on."""
    from tokenmill.bench.shapes import find_shape
    from tokenmill.engine.load import load_checkpoint
    from tokenmill.settings.engine_config import EngineConfig

    cases = list(_cases(given))
    config = EngineConfig(
        device=given.device,
        dtype="bfloat16",
        scheme=scheme,
        max_length=max(depth for depth, _ in cases) + 128,
        max_sequences=max(batch for _, batch in cases),
        block_size=64,
        **how,
    )
    engine = load_checkpoint(find_shape(shape), config)
    for depth, batch in cases:
        prompts = _prompts(batch, depth)
        step_s, ready_s = _step_s(
            lambda count, prompts=prompts: engine.generate(prompts, max_new_tokens=count, ignore_eos=True),  # type: ignore[misc]
            given.device,
            given.new,
        )
        read = engine.memory["matrix_bytes"]
        yield {"batch": batch, "depth": depth, "step_s": step_s, "ready_s": ready_s, "bytes": read}


def graphs(shape: str, scheme: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Program graphs."""
    return _ours(shape, scheme, given, program="graphs")


def compiled(shape: str, scheme: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Program compiled, static shapes."""
    return _ours(shape, scheme, given, compile="static")


def transformers(shape: str, _: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """generate() with a static cache, which compiles decoding on a GPU by itself."""
    import transformers as theirs

    from tokenmill.bench.shapes import find_shape

    config = dict(find_shape(shape).config)
    kind = config.pop("model_type")
    with torch.device(given.device):
        model = theirs.AutoModelForCausalLM.from_config(
            theirs.AutoConfig.for_model(kind, **config), dtype=torch.bfloat16
        )
    model = model.to(torch.bfloat16).eval()
    tied = 0 if config.get("tie_word_embeddings") else config["vocab_size"] * config["hidden_size"]
    read = (sum(parameter.numel() for parameter in model.parameters()) - tied) * BYTES
    for depth, batch in _cases(given):
        ids = torch.tensor(_prompts(batch, depth), device=given.device)
        # One cache of one size for every length, or each would compile again.
        cache = theirs.StaticCache(config=model.config, max_cache_len=depth + 128)

        @torch.inference_mode()
        def generate(count: int, ids: torch.Tensor = ids, cache: Any = cache) -> object:
            cache.reset()
            return model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=cache,
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )

        step_s, ready_s = _step_s(generate, given.device, given.new)
        yield {"batch": batch, "depth": depth, "step_s": step_s, "ready_s": ready_s, "bytes": read}


ENGINES = {"graphs": graphs, "compiled": compiled, "transformers": transformers}

if __name__ == "__main__":
    main()
