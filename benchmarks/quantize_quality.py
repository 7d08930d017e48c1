"""What each scheme and algorithm of `tokenmill quantize` costs: perplexity and divergence beside bytes, and a picture.

    python benchmarks/quantize_quality.py SOURCE TEXT [--tokens 4000] [--groups 32,64] [--also NAME=MODEL ...]
        [--output rows.jsonl] [--picture quantization]

SOURCE is a directory in Hugging Face layout in floating point. Where its weights were once codes of groups of 32, as
those of `tokenmill pull smollm2-135m` are, rounding finds these codes again and seems to lose nothing. So the source is
permuted first: the channels of the residual stream, of each MLP and of the values of each head change places at
random. The model computes the same, and no group holds the numbers of one old group. `--as-it-is` leaves that out.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tokenmill.calibrate.run import quantize_calibrated
from tokenmill.calibrate.texts import written_texts
from tokenmill.config import EngineConfig
from tokenmill.engine.build import build
from tokenmill.engine.engine import Engine
from tokenmill.hub.names import locate
from tokenmill.hub.progress import Silent
from tokenmill.measure.memory import peak_bytes, reset_peak
from tokenmill.measure.perplexity import compare, read_text
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.quantize import quantize

WINDOW = 512
ALGORITHMS = ("quick", "rtn", "importance", "gptq")


def permuted(source: Path, out: Path) -> Path:
    """The same model with its channels in another order; Llama's tensor names."""
    out.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, out / file.name)
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["hidden_size"] // heads
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randperm(config["hidden_size"], generator=generator)
    for name in tensors:
        if name.endswith(("norm.weight", "o_proj.weight", "down_proj.weight")):
            tensors[name] = tensors[name][hidden]
        else:
            tensors[name] = tensors[name][:, hidden]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}."
        values = torch.stack([torch.randperm(width, generator=generator) for _ in range(kv_heads)])
        rows = torch.cat([head * width + values[head] for head in range(kv_heads)])
        columns = torch.cat([head * width + values[head * kv_heads // heads] for head in range(heads)])
        inner = torch.randperm(config["intermediate_size"], generator=generator)
        for name, places in (("self_attn.v_proj", rows), ("mlp.gate_proj", inner), ("mlp.up_proj", inner)):
            tensors[f"{layer}{name}.weight"] = tensors[f"{layer}{name}.weight"][places]
        for name, places in (("self_attn.o_proj", columns), ("mlp.down_proj", inner)):
            tensors[f"{layer}{name}.weight"] = tensors[f"{layer}{name}.weight"][:, places]
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(whole, out / "model.safetensors", metadata={"format": "pt"})
    return out


def engine(path: Path, scheme: str = "auto", at_once: int = 1) -> Engine:
    settings = {"scheme": scheme, "max_sequences": at_once, "prefix_cache": False, "packed_cache": False}
    return build(open_checkpoint(path), EngineConfig(model=str(path), max_length=WINDOW, **settings))


def made(source: Path, folder: Path, groups: list[int], texts: Any) -> Iterator[tuple[dict[str, Any], Path]]:
    """Each configuration, and where it was written."""
    checkpoint = open_checkpoint(source)
    configs = [("q4", group, algorithm) for group in groups for algorithm in ALGORITHMS]
    for scheme, group, algorithm in [*configs, ("q8", 32, "rtn")]:
        out = folder / f"{scheme}-{group}-{algorithm}"
        reset_peak()
        started_s = time.perf_counter()
        if algorithm in ("quick", "rtn"):
            quick = algorithm == "quick"
            rounder = lambda _, rows, bits: round_to_nearest(rows, bits, group, quick=quick)  # noqa: E731, B023
            quantize(checkpoint, out, Silent(), scheme, group, rounder=rounder)
        else:
            quantize_calibrated(checkpoint, out, Silent(), algorithm, lambda: texts, {}, scheme=scheme, group=group)
        taken_s = time.perf_counter() - started_s
        facts = {"scheme": scheme, "group": group, "algorithm": algorithm, "seconds": taken_s, "peak": peak_bytes()}
        yield facts, out


def num_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in (path.glob("*.safetensors") if path.is_dir() else [path]))


def draw(rows: list[dict[str, Any]], source: dict[str, float], name: Path) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5))
    marks = {"quick": "x", "rtn": "s", "importance": "^", "gptq": "o"}
    for algorithm in dict.fromkeys(row["algorithm"] for row in rows):
        mine = [row for row in rows if row["algorithm"] == algorithm]
        points = [(row["bytes_per_weight"], row["perplexity"]) for row in mine]
        axes.plot(*zip(*sorted(points), strict=True), marks.get(algorithm, "D"), label=algorithm, ls=":", lw=0.8)
        for row, point in zip(mine, points, strict=True):
            axes.annotate(
                f"{row['scheme']} {row['group'] or ''}", point, fontsize=7, xytext=(3, 3), textcoords="offset points"
            )
    axes.axhline(source["perplexity"], color="grey", lw=0.8, label="source")
    axes.set_xlabel("bytes per weight, of the whole file")
    axes.set_ylabel("perplexity")
    axes.legend(fontsize=8)
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(name.with_suffix(suffix), dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--num-texts", type=int, default=32)
    parser.add_argument("--groups", default="32,64,128")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=MODEL")
    parser.add_argument("--as-it-is", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = arguments.source if arguments.as_it_is else permuted(arguments.source, folder / "source")
        reference = engine(source)
        weights = sum(torch.Size(shape).numel() for shape in open_checkpoint(source).shapes.values())
        tokens = read_text(arguments.text.read_text(), reference.tokenizer, arguments.tokens).tokens
        with engine(source, "q8", 16) as writer:
            texts = {"calibration": written_texts(writer, arguments.num_texts, WINDOW, 0, Silent())}
        rows = []
        others = [each.partition("=") for each in arguments.also]
        given = (({"scheme": name, "group": 0, "algorithm": "llama.cpp"}, locate(model)) for name, _, model in others)
        for maker in (made(source, folder, list(map(int, arguments.groups.split(","))), texts), given):
            for facts, path in maker:
                with engine(path) as ours:
                    found = compare(ours, reference, tokens, WINDOW, WINDOW)
                row = {
                    **facts,
                    "bytes_per_weight": num_bytes(path) / weights,
                    "perplexity": found.ours.perplexity,
                    "loss": found.ratio - 1,
                    "kl_divergence": found.kl_divergence,
                    "agreement": found.agreement,
                }
                rows.append(row)
                print(json.dumps(row), flush=True)
                if facts["algorithm"] != "llama.cpp":
                    shutil.rmtree(path)
        print(f"source: perplexity {found.reference.perplexity:.4f} on {len(tokens)} tokens")
    if arguments.output:
        arguments.output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if arguments.picture:
        draw(rows, {"perplexity": found.reference.perplexity}, arguments.picture)


if __name__ == "__main__":
    main()
