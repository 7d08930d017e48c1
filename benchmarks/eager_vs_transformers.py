"""Decode SmolLM2-135M-Instruct with tokenmill's eager program and with transformers' generate, in one run, alternating.

    python benchmarks/eager_vs_transformers.py [--rounds 5] [--new 128] [--threads 2] [--dtype bfloat16]

Same file, same prompt, same dtype, same threads. Prints one row per round, the medians, their ratio, the hash of both
outputs, and beside each round a probe of the machine's read bandwidth, because shared machines change while one looks.
"""

import argparse
import json
import platform
import statistics
import time

import torch
import transformers

import tokenmill
from tokenmill.engine.outputs import hash_tokens
from tokenmill.hub.names import locate

PROMPT = "The reason why the sky is blue is that"


def bandwidth_gb_s(buffer: torch.Tensor) -> float:
    """Read bandwidth of summing a buffer far larger than the caches."""
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        buffer.sum()
        best = max(best, buffer.nbytes / (time.perf_counter() - started) / 1e9)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = locate("smollm2-135m")
    engine = tokenmill.load(path, dtype=options.dtype, threads=options.threads)
    tokens = engine.encode(PROMPT)
    peer = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=getattr(torch, options.dtype)
    ).eval()
    prompt = torch.tensor([tokens])
    buffer = torch.ones(64 * 2**20)  # 256 MiB

    def ours() -> tuple[float, str]:
        started = time.perf_counter()
        done = engine.generate(tokens, max_new_tokens=options.new, ignore_eos=True)
        return options.new / (time.perf_counter() - started), done.hash

    def theirs() -> tuple[float, str]:
        started = time.perf_counter()
        with torch.inference_mode():
            out = peer.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=options.new,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return options.new / (time.perf_counter() - started), hash_tokens(out[0, len(tokens) :].tolist())

    ours(), theirs()  # warm-up
    rows = []
    print(f"{'round':>5} {'tokenmill tok/s':>16} {'transformers tok/s':>19} {'ratio':>6} {'GB/s':>6}")
    for number in range(options.rounds):
        (mine, my_hash), (other, other_hash) = ours(), theirs()
        probe = bandwidth_gb_s(buffer)
        rows.append((mine, other))
        print(f"{number:>5} {mine:>16.1f} {other:>19.1f} {mine / other:>6.2f} {probe:>6.1f}")
    ratios = [mine / other for mine, other in rows]
    summary = {
        "tokenmill_tok_s": round(statistics.median(m for m, _ in rows), 1),
        "transformers_tok_s": round(statistics.median(o for _, o in rows), 1),
        "ratio_median": round(statistics.median(ratios), 2),
        "ratio_min_max": [round(min(ratios), 2), round(max(ratios), 2)],
        "hash": {"tokenmill": my_hash, "transformers": other_hash},
        "new_tokens": options.new,
        "threads": options.threads,
        "dtype": options.dtype,
        "scheme": engine.config.scheme,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
