"""`tokenmill pull`: fetch a model, and convert it when a directory is given."""

from pathlib import Path
from typing import Annotated

import typer

from tokenmill.cli.parser.options import MODEL, OUTPUT, Model, Quiet, examples, option
from tokenmill.cli.process.display import progress_on_stderr
from tokenmill.cli.process.imports import uninterrupted
from tokenmill.errors import ConfigError
from tokenmill.settings.engine_config import DEFAULT_MODEL, DTYPE_ALIASES, DTYPES
from tokenmill.value_reader import check_choice

EXAMPLES = examples(
    "tokenmill pull",
    "tokenmill pull Qwen/Qwen3-0.6B --revision main",
    "tokenmill pull smollm2-135m -o smollm2-float32 --dtype float32",
)


def command(
    model: Model = DEFAULT_MODEL,
    revision: Annotated[str | None, option(MODEL, "--revision", help="Branch, tag or commit of a hub name.")] = None,
    offline: Annotated[bool, option(MODEL, "--offline", help="Use only what is in the cache.")] = False,
    output: Annotated[
        Path | None,
        option(OUTPUT, "--output", "-o", metavar="DIR", help="Convert to a new directory in Hugging Face layout."),
    ] = None,
    dtype: Annotated[
        str | None,
        option(OUTPUT, "--dtype", metavar="NAME", help="Data type of the converted weights. Default: the model's own."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Fetch a model and print its path.

    What is here already is not fetched again: an interrupted pull goes on when it is started once more. Hashes are
    checked. With --output any model that can be read, also a GGUF file, is written as a
    directory in Hugging Face layout.
    """
    from tokenmill.hub.names import is_there, locate
    from tokenmill.hub.short_names import ALL_NAMES
    from tokenmill.value_reader import with_home

    if dtype is not None and output is None:
        raise ConfigError("--dtype", dtype, "only together with --output, since fetching converts nothing")
    if dtype is not None:
        dtype = DTYPE_ALIASES.get(dtype, dtype)
        check_choice("--dtype", dtype, ("auto", *DTYPES))
    local = is_there(with_home(model))
    if revision is not None and (local or model in ALL_NAMES):
        what = "is on this machine already" if local else "is a short name, which stands for one file"
        raise ConfigError("--revision", revision, f"only with a hub name, owner/name: {model} {what}")
    if output is not None:
        with uninterrupted():
            from tokenmill.weights.write.convert import check_new, convert
        check_new(output)
    with progress_on_stderr(quiet) as progress:
        path = locate(model, progress=progress, revision=revision, offline=offline)
        if output is not None or local:
            with uninterrupted():
                from tokenmill.weights.checkpoint import open_checkpoint
            checkpoint = open_checkpoint(path)  # refuses what is no model
        if output is not None:
            path = convert(checkpoint, output, dtype or "auto", progress)
    typer.echo(path)
