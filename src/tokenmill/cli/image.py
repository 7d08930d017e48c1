"""`tokenmill image`, the old name of `pack` and, with `--program compiled`, of `compile`. Hidden from `--help`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli import compile as compile_verb
from tokenmill.cli import pack
from tokenmill.cli.display import remark
from tokenmill.cli.options import Json, Model, Quiet, with_settings
from tokenmill.settings.engine_config import DEFAULT_MODEL, EngineConfig

__all__ = ["EXAMPLES", "command"]

EXAMPLES = ""

OPTIONS = ("program", "dtype", "scheme", "cache_format", "compile_phases", "device")


@with_settings(only=OPTIONS, engine=EngineConfig)
def command(
    engine: EngineConfig,
    *,
    model: Model = DEFAULT_MODEL,
    output: Annotated[Path, typer.Option("--output", "-o")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The old name of `tokenmill pack` (a packed model) and `tokenmill compile` (an AOT package)."""
    if engine.program == "compiled":
        remark("`tokenmill image --program compiled` is now `tokenmill compile`")
        compile_verb.write(replace(engine, model=model, program="auto"), output, json, quiet)
    else:
        remark("`tokenmill image` is now `tokenmill pack`")
        pack.write(replace(engine, model=model), output, json, quiet)
