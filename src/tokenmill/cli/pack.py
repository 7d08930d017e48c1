"""`tokenmill pack`: a packed model, one file with the weights as a program reads them, for quick starts."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli.display import print_json, progress_on_stderr, size
from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.options import ENGINE, MODEL, OUTPUT, Json, Model, Quiet, examples
from tokenmill.config import DEFAULT_MODEL, EngineConfig

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill pack smollm2-135m -o smollm2.packed",
    'tokenmill generate smollm2.packed -p "Hello"',
    "tokenmill pack Qwen/Qwen3-0.6B --scheme q4 -o qwen3-q4.packed",
)


def command(
    out: Annotated[Path, typer.Option("--out", "-o", help="The new file.", rich_help_panel=OUTPUT)],
    model: Model = DEFAULT_MODEL,
    dtype: Annotated[
        str, typer.Option("--dtype", help="auto, float32 or bfloat16.", rich_help_panel=MODEL)
    ] = EngineConfig.dtype,
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme", help="auto, dense, q8 or q4; auto keeps a quantised file's own codes.", rich_help_panel=MODEL
        ),
    ] = EngineConfig.scheme,
    program: Annotated[
        str, typer.Option("--program", help="The program whose layout the weights take.", rich_help_panel=ENGINE)
    ] = "native",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a packed model: one file with the weights in the layout that the native program reads.

    The file can be given wherever a model is given. The text is the same, and loading is only reading the file, which
    holds tokenizer and settings too. It is refused when it is damaged, or when its model has changed since.
    """
    from tokenmill.engine.pack import save_packed_model

    config = EngineConfig(model=model, program=program, dtype=dtype, scheme=scheme)
    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        progress.stage(f"packing {checkpoint.path.name}")
        num_bytes = save_packed_model(checkpoint, config, out, progress.advance)
    if json:
        print_json({"path": str(out), "model": str(checkpoint.path), "num_bytes": num_bytes})
    else:
        typer.echo(f"{out}: {size(num_bytes)}")
