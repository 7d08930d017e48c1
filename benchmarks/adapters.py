"""The time of a token with adapters (LoRA), over the time without, of a model built like Llama.

    python benchmarks/adapters.py [MODEL] [--rank R] [--rounds N] [setting=value …]

Adapters of random factors, on all seven matrices of every layer, are written in a temporary folder. Settings are the
engine's, such as scheme=q4. In turns within a round: one text with one adapter and without, decoding behind 64 tokens;
16 texts with eight adapters, with one, and without; a prompt of 400 tokens with one and without. A figure is the median
of the rounds, a ratio the median of the ratios within a round.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from safetensors.torch import save_file

import tokenmill

ADAPTERS, TEXTS, NEW, PROMPT = 8, 16, 32, 400


def write_adapter(folder: Path, config: tokenmill.Engine, rank: int, seed: int) -> Path:
    """Write an adapter of a model that has the names and the shapes of Llama."""
    model = config.model_config
    q, kv, hidden, inner = (
        model.num_heads * model.head_dim,
        model.num_kv_heads * model.head_dim,
        model.hidden_size,
        model.intermediate_size,
    )
    shapes = {
        "self_attn.q_proj": (hidden, q),
        "self_attn.k_proj": (hidden, kv),
        "self_attn.v_proj": (hidden, kv),
        "self_attn.o_proj": (q, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    generator, tensors = torch.Generator().manual_seed(seed), {}
    for layer in range(model.num_layers):
        for name, (inputs, outputs) in shapes.items():
            path = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) * 0.02
            tensors[f"{path}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) * 0.02
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = [name.rpartition(".")[2] for name in shapes]
    facts = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(facts))
    return folder


def decode_ms(engine: tokenmill.Engine, adapter: str | None) -> float:
    done = engine.generate(list(range(100, 164)), max_new_tokens=64, ignore_eos=True, adapter=adapter)
    return 1e3 * median(done.timing.itl_s)


def batch_s(engine: tokenmill.Engine, names: list[str | None]) -> float:
    params = tokenmill.SamplingParams(max_new_tokens=NEW, ignore_eos=True)
    core = engine.core
    requests = [core.request([number + 5, *range(100, 120)], params, adapter=name) for number, name in enumerate(names)]
    begun = time.perf_counter()
    core.finish(requests)
    return time.perf_counter() - begun


def prompt_s(engine: tokenmill.Engine, adapter: str | None, number: int) -> float:
    begun = time.perf_counter()
    engine.generate([10 + number, *range(100, 100 + PROMPT)], max_new_tokens=1, adapter=adapter)
    return time.perf_counter() - begun


def measure(engine: tokenmill.Engine, number: int) -> dict[str, dict[str, float]]:
    names = [f"a{each}" for each in range(ADAPTERS)]
    return {
        "ms of a token, one text": {each or "none": decode_ms(engine, each) for each in (None, "a0")},
        f"s of {NEW} tokens, {TEXTS} texts": {
            "none": batch_s(engine, [None] * TEXTS),
            "eight": batch_s(engine, [names[each % ADAPTERS] for each in range(TEXTS)]),
            "a0": batch_s(engine, ["a0"] * TEXTS),
        },
        f"s of {PROMPT} tokens, a prompt": {each or "none": prompt_s(engine, each, number) for each in (None, "a0")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    settings = dict(each.split("=", 1) for each in given.settings)
    fixed = {"max_sequences": TEXTS, "max_length": 512, "block_size": 32, "speculate": "off"}
    with tempfile.TemporaryDirectory() as folder, tokenmill.load(given.model, **fixed, **settings) as engine:
        loads = []
        for number in range(ADAPTERS):
            path = write_adapter(Path(folder, str(number)), engine, given.rank, number)
            begun = time.perf_counter()
            engine.load_adapter(f"a{number}", path)
            loads.append(time.perf_counter() - begun)
        size = sum(each.num_bytes for each in engine.adapters.values()) / ADAPTERS / 1e6
        print(f"{given.model}, {engine.config.scheme}, {engine.program_name}: rank {given.rank}, {size:.1f} MB each")
        print(f"{1e3 * median(loads):.0f} ms to load one")
        prompt_s(engine, None, 1000)
        rounds = [measure(engine, number) for number in range(given.rounds)]
        for name, first in rounds[0].items():
            for kind in first:
                found = median(each[name][kind] for each in rounds)
                ratio = median(each[name][kind] / each[name]["none"] for each in rounds)
                print(f"{name:32} {kind:6} {found:8.2f}   {ratio:.2f}")


if __name__ == "__main__":
    main()
