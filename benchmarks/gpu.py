"""Decoding with random weights: compiled tokenmill beside transformers' static cache and compile, in one run.

Run: benchmarks/gpu.sh [--device cuda] [--shapes llama-1b,llama-8b] [--batches 1,32] [--new 64] [--limit 450].
Each engine and case has a process of its own, so that one that fails is a line of the table. Beside them stands how
fast the device copies memory, and the share of it that reading every weight once a step comes to.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

PROMPT, SHORT, ROUNDS = 128, 8, 3
BYTES = 2  # of bfloat16


def main() -> None:
    """Measure everything, or one case in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default="llama-1b,llama-8b")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--new", type=int, default=64, help="tokens that are measured")
    parser.add_argument("--limit", type=float, default=450.0, help="seconds for everything")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here: --device cpu --shapes smollm2-135m tries the same code")
    if given.case is not None:
        engine, shape, batch = given.case.split(",")
        print(json.dumps(ENGINES[engine](shape, int(batch), given.device, given.new)))
        return
    _everything(given)


def _everything(given: argparse.Namespace) -> None:
    until = time.monotonic() + given.limit
    copied = copy_rate(given.device)
    name = platform.processor() or platform.machine() if given.device == "cpu" else torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, bfloat16, prompt {PROMPT}, {given.new} new tokens")
    print(f"it copies {copied:,.0f} GB/s")
    head = {"tokens/s": 10, "ms/step": 9, "GB/s": 8, "of copy": 9, "ready s": 9}
    print(f"{'shape':<14}{'batch':>6}  {'engine':<14}" + "".join(f"{name:>{wide}}" for name, wide in head.items()))
    for shape in given.shapes.split(","):
        for batch in given.batches.split(","):
            rates = {}
            for engine in ENGINES:
                row = _apart(given, f"{engine},{shape},{batch}", until - time.monotonic())
                if "failed" in row:
                    print(f"{shape:<14}{batch:>6}  {engine:<14}{row['failed']}", flush=True)
                    continue
                rates[engine] = int(batch) / row["step_s"]
                read = row["bytes"] / row["step_s"] / 1e9
                print(
                    f"{shape:<14}{batch:>6}  {engine:<14}{rates[engine]:>10,.1f}{1e3 * row['step_s']:>9.2f}"
                    f"{read:>8,.0f}{read / copied:>9.0%}{row['ready_s']:>9.0f}",
                    flush=True,
                )
            if len(rates) == len(ENGINES):
                ours, theirs = rates.values()
                print(f"{shape:<14}{batch:>6}  {ours / theirs:.2f} times as fast", flush=True)


def _apart(given: argparse.Namespace, case: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", case, "--device", given.device, "--new", str(given.new)]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=max(seconds, 1.0), check=False)
    except subprocess.TimeoutExpired:
        return {"failed": "no time left"}
    if ran.returncode:
        return {"failed": (ran.stderr.strip().splitlines() or ["it said nothing"])[-1][:150]}
    row: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return row


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


def tokenmill(shape: str, batch: int, device: str, new: int) -> dict[str, Any]:
    """Program compiled, static shapes."""
    from tokenmill.bench.shapes import find_shape
    from tokenmill.engine.load import load_checkpoint
    from tokenmill.settings.engine_config import EngineConfig

    config = EngineConfig(
        device=device,
        dtype="bfloat16",
        scheme="dense",
        compile="static",
        max_length=256,
        max_sequences=batch,
        prefix_cache=False,
    )
    engine = load_checkpoint(find_shape(shape), config)
    prompts = [[(7 * row + place) % 1000 for place in range(PROMPT)] for row in range(batch)]
    step_s, ready_s = _step_s(
        lambda count: engine.generate(prompts, max_new_tokens=count, ignore_eos=True), device, new
    )
    return {"step_s": step_s, "ready_s": ready_s, "bytes": engine.memory["matrix_bytes"]}


def transformers(shape: str, batch: int, device: str, new: int) -> dict[str, Any]:
    """generate() with a static cache, which compiles decoding on a GPU by itself."""
    import transformers as theirs

    from tokenmill.bench.shapes import find_shape

    config = dict(find_shape(shape).config)
    kind = config.pop("model_type")
    with torch.device(device):
        model = theirs.AutoModelForCausalLM.from_config(
            theirs.AutoConfig.for_model(kind, **config), dtype=torch.bfloat16
        )
    model = model.to(torch.bfloat16).eval()
    ids = torch.tensor([[(7 * row + place) % 1000 for place in range(PROMPT)] for row in range(batch)], device=device)
    # One cache of one size for every length, or each would compile again.
    cache = theirs.StaticCache(config=model.config, max_cache_len=256)

    @torch.inference_mode()
    def generate(count: int) -> object:
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

    step_s, ready_s = _step_s(generate, device, new)
    tied = 0 if config.get("tie_word_embeddings") else config["vocab_size"] * config["hidden_size"]
    read = (sum(parameter.numel() for parameter in model.parameters()) - tied) * BYTES
    return {"step_s": step_s, "ready_s": ready_s, "bytes": read}


ENGINES = {"tokenmill": tokenmill, "transformers": transformers}

if __name__ == "__main__":
    main()
