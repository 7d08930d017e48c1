"""`tokenmill image`: a model with its weights in their final form, for quick starts."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli.display import print_json, progress_on_stderr, size
from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.options import ENGINE, MODEL, OUTPUT, Json, Model, Quiet, examples
from tokenmill.config import DEFAULT_MODEL, EngineConfig
from tokenmill.registry import resolve

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill image smollm2-135m -o smollm2.image",
    'tokenmill generate smollm2.image -p "Hello"',
    "tokenmill image smollm2-135m --program compiled -o smollm2.code",
    'tokenmill generate smollm2-135m --image smollm2.code -p "Hello"',
    "tokenmill image Qwen/Qwen3-0.6B --scheme q4 -o qwen3-q4.image",
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
        str,
        typer.Option("--program", help="The program that it is for: native or compiled.", rich_help_panel=ENGINE),
    ] = "native",
    cache_format: Annotated[
        str, typer.Option("--cache-format", help="Of program compiled: dense or int8.", rich_help_panel=ENGINE)
    ] = EngineConfig.cache_format,
    compile_phases: Annotated[
        str, typer.Option("--compile-phases", help="Of program compiled: decode or both.", rich_help_panel=ENGINE)
    ] = EngineConfig.compile_phases,
    device: Annotated[
        str, typer.Option("--device", help="Of program compiled: cpu or cuda.", rich_help_panel=ENGINE)
    ] = EngineConfig.device,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a model as an image: one file with its weights packed as the native program reads them.

    Where a model is given, so may its image: the text is the same, and loading it is only reading a file. Tokenizer and
    settings are inside. An image is refused when it is damaged, or when its model has changed since.

    With --program compiled it is a directory of compiled code, to be given as --image beside the model, whose weights
    stay where they are. It is machine code: use only what you made.
    """
    config = EngineConfig(
        model, program, dtype, device, scheme=scheme, cache_format=cache_format, compile_phases=compile_phases
    )
    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        if program == "compiled":
            num_bytes: int = resolve("tokenmill.engine.build:save_code")(checkpoint, config, out, progress)
        else:
            progress.stage(f"packing {checkpoint.path.name}")
            num_bytes = resolve("tokenmill.engine.build:save_image")(checkpoint, config, out, progress.advance)
    if json:
        print_json({"path": str(out), "model": str(checkpoint.path), "num_bytes": num_bytes})
    else:
        typer.echo(f"{out}: {size(num_bytes)}")
