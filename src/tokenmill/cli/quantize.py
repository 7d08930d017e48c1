"""`tokenmill quantize`: a model with matrices in 4 or 8 bits, as a directory or a GGUF file."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenmill.cli.display import print_json, print_table, progress_on_stderr
from tokenmill.cli.imports import uninterrupted
from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.options import MODEL, OUTPUT, Json, Model, Quiet, examples
from tokenmill.config import DEFAULT_MODEL
from tokenmill.units import size

if TYPE_CHECKING:  # imports torch
    from tokenmill.weights.write.quantize import Kind

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill quantize Qwen/Qwen3-0.6B -o qwen3-q4",
    "tokenmill quantize Qwen/Qwen3-0.6B --scheme q4 --group 128 -o qwen3-q4-128",
    "tokenmill quantize model-directory --scheme q8 --head none -o model-q8",
    "tokenmill quantize Qwen/Qwen3-0.6B --export gptq --group 128 -o qwen3-gptq",
    "tokenmill quantize Qwen/Qwen3-0.6B --export gguf -o qwen3-q4_1.gguf",
)


def command(
    *,
    model: Model = DEFAULT_MODEL,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="The new directory, in Hugging Face layout; with --export gguf the new file.",
            rich_help_panel=OUTPUT,
        ),
    ],
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme",
            metavar="NAME",
            help="How matrices are stored: q4 or q8; with --export gguf also none, as they are.",
            rich_help_panel=MODEL,
        ),
    ] = "q4",
    group: Annotated[
        int, typer.Option("--group", help="Inputs that share a scale: 32, 64, 128 or 256.", rich_help_panel=MODEL)
    ] = 32,
    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="NAME",
            help="Scheme of a head that is not the embedding: q8, q4 or none. Default: q8; with --export gptq, none. "
            "With --export gguf also of an embedding that is the head, by default none.",
            rich_help_panel=MODEL,
        ),
    ] = None,
    export: Annotated[
        str,
        typer.Option(
            "--export",
            metavar="NAME",
            help="The format: tokenmill's own, gptq (a directory for other engines) or gguf (a file for llama.cpp).",
            rich_help_panel=OUTPUT,
        ),
    ] = "tokenmill",
    symmetric: Annotated[
        bool,
        typer.Option(
            "--symmetric",
            help="Exports only: codes of 4 bits without a zero or minimum of their own (in GGUF Q4_0, not Q4_1).",
            rich_help_panel=MODEL,
        ),
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Round the matrices of a model to 4 or 8 bits and write them as a directory, or as a GGUF file.

    Each is rounded to nearest, with the scale that leaves the smallest error, and kept exactly when the model is
    loaded. Embeddings, norms and biases stay as they are. A model that is quantised already is rounded once more.
    """
    with uninterrupted():
        from tokenmill.weights.write.export import find_export
        from tokenmill.weights.write.quantize import quantize

    find_export(export).check_output(output)
    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        found = quantize(checkpoint, output, progress, scheme, group, head, export=export, symmetric=symmetric)
    files = output.iterdir() if output.is_dir() else [output]
    num_bytes = sum(file.stat().st_size for file in files)
    kinds = sorted(found.values(), key=lambda kind: kind.error is None)  # what stayed numbers comes last
    if json:
        told = {"path": str(output), "export": export, "scheme": scheme, "group": group, "num_bytes": num_bytes}
        print_json({**told, "tensors": list(map(_facts, kinds))})
        return
    header = ("tensors", "count", "stored as", "relative error", "before", "after")
    print_table(f"{model} in {scheme}, groups of {group}", [*map(_row, kinds), _total(kinds)], header)
    typer.echo(f"{output}: {size(num_bytes)}")


def _row(kind: "Kind") -> tuple[str, ...]:
    error = "" if kind.error is None else f"{kind.error:.2%}"
    return kind.name, str(kind.count), kind.stored_as, error, size(kind.bytes_before), size(kind.bytes_after)


def _total(kinds: list["Kind"]) -> tuple[str, ...]:
    before, after = (sum(getattr(kind, name) for kind in kinds) for name in ("bytes_before", "bytes_after"))
    return "total", str(sum(kind.count for kind in kinds)), "", "", size(before), size(after)


def _facts(kind: "Kind") -> dict[str, Any]:
    facts = {key: value for key, value in asdict(kind).items() if not key.startswith("squared_")}
    return {**facts, "relative_error": kind.error}
