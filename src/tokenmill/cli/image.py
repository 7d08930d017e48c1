"""`tokenmill image`, the old name of `pack` and, with `--program compiled`, of `compile`. Hidden from `--help`."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli import compile as compile_verb
from tokenmill.cli import pack
from tokenmill.cli.display import remark
from tokenmill.config import DEFAULT_MODEL, EngineConfig

__all__ = ["command"]


def command(
    out: Annotated[Path, typer.Option("--out", "-o")],
    model: Annotated[str, typer.Argument()] = DEFAULT_MODEL,
    dtype: str = EngineConfig.dtype,
    scheme: str = EngineConfig.scheme,
    program: str = "native",
    cache_format: str = EngineConfig.cache_format,
    compile_phases: str = EngineConfig.compile_phases,
    device: str = EngineConfig.device,
    json: Annotated[bool, typer.Option("--json")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q")] = False,
) -> None:
    """The old name of `tokenmill pack` (a packed model) and `tokenmill compile` (an AOT package)."""
    if program == "compiled":
        remark("`tokenmill image --program compiled` is now `tokenmill compile`")
        compile_verb.command(out, model, dtype, scheme, cache_format, compile_phases, device, json, quiet)
    else:
        remark("`tokenmill image` is now `tokenmill pack`")
        pack.command(out, model, dtype, scheme, program, json, quiet)
