"""What each scheme and algorithm of `tokenmill quantize` costs: perplexity and divergence beside bits, and a picture.

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

import gguf
import torch
from matplotlib.ticker import NullLocator
from safetensors.torch import load_file, save_file

from tokenmill.bench.plot.frame import GREY, legend, legend_inches, new_figure, plain, save, style, styled
from tokenmill.calibrate.run import quantize_calibrated
from tokenmill.calibrate.texts import written_texts
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_checkpoint
from tokenmill.hub.names import locate
from tokenmill.hub.progress import Silent
from tokenmill.measure.memory import peak_bytes, reset_peak
from tokenmill.measure.perplexity import compare, read_text
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.settings.engine_config import EngineConfig
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
    return load_checkpoint(open_checkpoint(path), EngineConfig(model=str(path), max_length=WINDOW, **settings))


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


def matrix_bits(path: Path, weights: int) -> float:
    """Bits for each of so many weights of matrices: all tensors but the embedding, which differs by file, and norms."""
    if path.is_dir():
        sizes = {}
        for file in path.glob("*.safetensors"):
            sizes |= {name: tensor.nbytes for name, tensor in load_file(file).items()}
    else:
        sizes = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}
    return 8 * sum(size for name, size in sizes.items() if is_matrix(name)) / weights


def is_matrix(name: str) -> bool:
    return "embd" not in name and "embed" not in name and "norm" not in name


def draw(rows: list[dict[str, Any]], source: float, name: Path) -> None:
    """Perplexity and divergence over bytes per weight, a series for each algorithm."""
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    ticks = sorted({round(row["bits"] / 8, 2) for row in rows})
    below = legend_inches([*algorithms, "source"], 5.6)
    with styled():
        figure = new_figure("What each bit costs", [{"dtype": "bfloat16"}], (), (11.2, 3.9 + below))
        shown = (("perplexity", "Perplexity"), ("kl_divergence", "Divergence from the source, nats per token"))
        for axes, (field, title) in zip(figure.subplots(1, 2), shown, strict=True):
            handles = [(draw_algorithm(axes, rows, field, one, place), one) for place, one in enumerate(algorithms)]
            axes.set_title(title)
            axes.set_xlabel("bytes per weight of the matrices, scales included")
            axes.margins(x=0.2)
            axes.set_xscale("log")
            axes.set_xticks(ticks, list(map(str, ticks)), fontsize=7)
            axes.xaxis.set_minor_locator(NullLocator())
            if field == "perplexity":
                handles.append((axes.axhline(source, color=GREY, lw=1), "source"))
            else:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(plain)
            legend(axes, handles, 5.6)
        save(figure, name.with_suffix(".png"), "--picture")


def draw_algorithm(axes: Any, rows: list[dict[str, Any]], field: str, algorithm: str, place: int) -> Any:
    """Files of another program are points: nothing lies between two of its formats."""
    look, is_other = style(place), algorithm == "llama.cpp"
    mine = sorted((row for row in rows if row["algorithm"] == algorithm), key=lambda row: float(row["bits"]))
    points = [(row["bits"] / 8, row[field]) for row in mine]
    if algorithm in ("gptq", "llama.cpp"):
        for row, point in zip(mine, points, strict=True):
            text = f"{row['scheme']} {row['group'] or ''}".strip()
            # The smallest files lie above each other at the left edge: their names go to the left of them.
            is_left, is_low = row["bits"] < 5 and text != "Q4_0", text == "Q4_0-imatrix" and field == "perplexity"
            height = -12 if is_low else 4 if text == "Q4_K_M" else -3
            offset, side = (-7 if is_left else 7, height), "right" if is_left else "left"
            axes.annotate(text, point, fontsize=8, color=GREY, xytext=offset, textcoords="offset points", ha=side)
    dash = "none" if is_other else look.dash
    return axes.plot(*zip(*points, strict=True), color=look.colour, marker=look.marker, linestyle=dash)[0]


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
        shapes = open_checkpoint(source).shapes
        weights = sum(torch.Size(shape).numel() for shape in shapes.values())
        in_matrices = sum(torch.Size(shape).numel() for name, shape in shapes.items() if is_matrix(name))
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
                    "bits": matrix_bits(path, in_matrices),
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
        draw(rows, found.reference.perplexity, arguments.picture)


if __name__ == "__main__":
    main()
