"""`tokenmill pull`: fetch a model, and convert it when a directory is given."""

from pathlib import Path

from tokenmill.cli.parser.options import MODEL, MODEL_NAME, OUTPUT, QUIET, option
from tokenmill.cli.process.display import echo, progress_on_stderr
from tokenmill.errors import ConfigError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import DTYPE_ALIASES, DTYPES
from tokenmill.value_reader import check_choice

EXAMPLES = (
    "tokenmill pull",
    "tokenmill pull Qwen/Qwen3-0.6B --revision main",
    "tokenmill pull smollm2-135m -o smollm2-float32 --dtype float32",
)


def command(
    model: str = MODEL_NAME,
    revision: str | None = option(None, "Branch, tag or commit of a hub name.", MODEL),
    offline: bool = option(False, "Use only what is in the cache.", MODEL),
    output: Path | None = option(
        None, "Convert to a new directory in Hugging Face layout.", OUTPUT, "-o", metavar="DIR"
    ),
    dtype: str | None = option(
        None, "Data type of the converted weights. Default: the model's own.", OUTPUT, metavar="NAME"
    ),
    quiet: bool = QUIET,
) -> None:
    """Fetch a model and print its path.

    What is here already is not fetched again: an interrupted pull goes on when it is started once more. Hashes are
    checked. With --output any model that can be read, also a GGUF file, is written as a directory in Hugging Face
    layout.
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
        with held_interrupts():
            from tokenmill.weights.write.convert import check_new, convert
        check_new(output)
    with progress_on_stderr(quiet) as progress:
        path = locate(model, progress=progress, revision=revision, offline=offline)
        if output is not None or local:
            with held_interrupts():
                from tokenmill.weights.checkpoint import open_checkpoint
            checkpoint = open_checkpoint(path)  # refuses what is no model
        if output is not None:
            path = convert(checkpoint, output, dtype or "auto", progress)
    echo(path)
