"""`tokenmill compile`: an AOT package, a directory with a model's layers compiled ahead of time."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli.display import print_json, progress_on_stderr, size
from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.options import ENGINE, MODEL, OUTPUT, Json, Model, Quiet, examples
from tokenmill.config import DEFAULT_MODEL, EngineConfig

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill compile smollm2-135m -o smollm2.aot",
    'tokenmill generate smollm2-135m --aot-package smollm2.aot -p "Hello"',
    "tokenmill compile smollm2-135m --compile-phases both --cache-format int8 -o smollm2-int8.aot",
)


def command(
    out: Annotated[Path, typer.Option("--out", "-o", help="The new directory.", rich_help_panel=OUTPUT)],
    model: Model = DEFAULT_MODEL,
    dtype: Annotated[
        str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.", rich_help_panel=MODEL)
    ] = EngineConfig.dtype,
    scheme: Annotated[
        str, typer.Option("--scheme", help="How matrices are stored.", rich_help_panel=MODEL)
    ] = EngineConfig.scheme,
    cache_format: Annotated[
        str, typer.Option("--cache-format", help="How the cache stores a row.", rich_help_panel=ENGINE)
    ] = EngineConfig.cache_format,
    compile_phases: Annotated[
        str,
        typer.Option("--compile-phases", help="What is compiled: decode, prefill or both.", rich_help_panel=ENGINE),
    ] = EngineConfig.compile_phases,
    device: Annotated[
        str, typer.Option("--device", help="The device that it is for: cpu or cuda.", rich_help_panel=ENGINE)
    ] = EngineConfig.device,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write an AOT package: a directory of compiled code, which later runs need no compiler for.

    The directory is given as --aot-package beside the model, whose weights stay where they are. It is refused when the
    model, a setting, the processor or torch differs. It is machine code: use only packages that you made.
    """
    from tokenmill.engine.compile import save_aot_package

    config = EngineConfig(
        model=model,
        dtype=dtype,
        device=device,
        scheme=scheme,
        cache_format=cache_format,
        compile_phases=compile_phases,
    )
    with progress_on_stderr(quiet) as progress:
        checkpoint = find_checkpoint(model, progress)
        num_bytes = save_aot_package(checkpoint, config, out, progress)
    if json:
        print_json({"path": str(out), "model": str(checkpoint.path), "num_bytes": num_bytes})
    else:
        typer.echo(f"{out}: {size(num_bytes)}")
