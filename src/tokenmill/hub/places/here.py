"""All models that lie on this machine, wherever they lie; the models that tokenmill has fetched into its own cache
folder.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from shlex import quote

from tokenmill.errors import TokenmillError
from tokenmill.hub.download import Packaged, cache_folder
from tokenmill.hub.places import folders, ollama
from tokenmill.hub.places.entry import HUB, OURS, FoundModel, is_folder, real_path, reason_of, shown
from tokenmill.hub.short_names import SHORT_NAMES
from tokenmill.registry import PLACES, lookup


def entries_here(more: Iterable[Path] = ()) -> list[FoundModel]:
    """List models and other files, with the reason why they are no model: in our cache folder, the hub's cache,
    Ollama's stores, the folders of other programs and the given folders. A file in a folder that has a name already is
    not told again.
    """
    found: list[FoundModel] = []
    known: set[Path] = set()
    every = (_own_entries(), lookup(PLACES, HUB, "place")(), ollama.all_entries(), folders.all_entries(more))
    for entry in chain.from_iterable(every):
        real = None if entry.path is None else real_path(entry.path)
        has_name = real is None or entry.name not in (str(entry.path), shown(entry.path or real))
        if has_name or real not in known:
            found.append(entry)
        if real is not None:
            known.add(real)
    return found


def names_here() -> list[str]:
    """Name the models here, as `--model` takes them; empty where they cannot be found out."""
    try:
        return [entry.name for entry in entries_here() if entry.path is not None and not entry.is_adapter]
    except (OSError, TokenmillError):
        return []


def _own_entries() -> Iterator[FoundModel]:
    """Yield what lies at the top of the cache folder: other programs' files in it are told apart from ours."""
    folder = cache_folder()
    ours = {model.file_name: (name, model) for name, model in SHORT_NAMES.items()}
    try:
        paths = sorted(folder.iterdir()) if is_folder(folder) else []
    except OSError as error:
        yield FoundModel(str(folder), OURS, folder, problem=f"cannot be read: {reason_of(error)}")
        return
    for path in paths:
        if path.name in ours:
            yield _fetched(folder, path, *ours[path.name])
        elif path.suffix == ".gguf" and not path.name.startswith("."):
            note = "lies in the cache folder of tokenmill, which has not fetched it"
            yield FoundModel(shown(path), OURS, folder, path, (path,), note=note, elsewhere=f"rm {quote(str(path))}")


def _fetched(folder: Path, path: Path, name: str, model: Packaged) -> FoundModel:
    wanted, remove, problem = model.num_bytes, f"rm {quote(str(path))}", ""
    try:
        if (there := path.stat().st_size) != wanted:
            problem = f"is {path} of {there:,} bytes, and has {wanted:,}: `tokenmill pull {name}` fetches it again"
    except OSError as error:
        problem = f"is {path}, which cannot be read: {reason_of(error)}"
    if problem:
        return FoundModel(name, OURS, folder, None, (path,), problem, elsewhere=remove)
    if path.is_symlink():
        note = f"is a link to {real_path(path)}"
        return FoundModel(name, OURS, folder, path, (path,), note=note, elsewhere=remove)
    return FoundModel(name, OURS, folder, path, (path,))
