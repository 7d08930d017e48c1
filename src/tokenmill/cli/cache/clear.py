"""`tokenmill cache clear`: deletes packed copies of models."""

from pathlib import Path

from tokenmill.cli.parser.options import JSON, QUIET, argument
from tokenmill.cli.process.display import echo, print_json
from tokenmill.errors import RequestError
from tokenmill.hub.short_names import SHORT_NAMES
from tokenmill.loader.copies import CopiesFolder, PackedCopy, copies, copies_folder, delete_copy
from tokenmill.units import size

EXAMPLES = ("tokenmill cache clear", "tokenmill cache clear SmolLM2-135M-Instruct.Q4_1.gguf")


def command(
    models: list[str] | None = argument(
        None, "[MODEL]...", "Path or name of a model, or name of a copy. Default: all."
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Delete the packed copies of models, or of the given ones. Models and stored blocks of prompts stay.

    A program that is using a copy goes on with it. The next load of a model makes a new copy.
    """
    found = copies()
    models = [SHORT_NAMES[name].file_name if name in SHORT_NAMES else name for name in models or ()]
    chosen = [copy for copy in found if not models or any(map(_names(copy).__contains__, models))]
    for name in models:
        if not any(name in _names(copy) for copy in chosen):
            there = ", ".join(copy.path.name for copy in found) or "none"
            raise RequestError(f"{name} has no packed copy in {copies_folder()}; there are: {there}")
    for copy in chosen:
        delete_copy(copy.path)
    if not models:
        CopiesFolder().remove_leftovers()
    freed = sum(copy.num_bytes for copy in chosen)
    if json:
        print_json({"deleted": [copy.path.name for copy in chosen], "num_bytes": freed})
    elif not quiet:
        word = "packed copy" if len(chosen) == 1 else "packed copies"
        echo(f"{len(chosen)} {word} deleted, {size(freed)}")


def _names(copy: PackedCopy) -> set[str]:
    """Return the names that a person may type for a copy."""
    return {copy.path.name, copy.source, Path(copy.source).name, Path(copy.source).name.removesuffix(".gguf")}
