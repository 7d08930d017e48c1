"""All that lies on this machine, wherever it lies."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenmill.errors import TokenmillError
from tokenmill.hub.places import folders, ollama, own
from tokenmill.hub.places.entry import HUB, FoundModel, real_path, shown
from tokenmill.registry import PLACES, lookup


def entries_here(more: Iterable[Path] = ()) -> list[FoundModel]:
    """Models, and what is no model and why: of our cache folder, the hub's cache, Ollama's stores, the folders of other
    programs and those that are given. A file in a folder that has a name already is not told again.
    """
    found: list[FoundModel] = []
    known: set[Path] = set()
    for entry in _all(more):
        real = None if entry.path is None else real_path(entry.path)
        has_name = real is None or entry.name not in (str(entry.path), shown(entry.path or real))
        if has_name or real not in known:
            found.append(entry)
        if real is not None:
            known.add(real)
    return found


def _all(more: Iterable[Path]) -> Iterator[FoundModel]:
    yield from own.all_entries()
    yield from lookup(PLACES, HUB, "place")()
    yield from ollama.all_entries()
    yield from folders.all_entries(more)


def names_here() -> list[str]:
    """The names of the models here, as `--model` takes them; none where they cannot be found out."""
    try:
        return [entry.name for entry in entries_here() if entry.path is not None]
    except (OSError, TokenmillError):
        return []
