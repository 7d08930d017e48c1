"""Models in plain folders: the folders of LM Studio and llama.cpp, and folders that the user gives."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from shlex import join, quote

from tokenmill.hub.places.entry import FOLDER, FoundModel, folder_of, is_folder, reason_of, shown
from tokenmill.hub.weight_files import find_weights, holds_adapter, missing_of_adapter, missing_shards, shards_of
from tokenmill.value_reader import folder_of_setting

VARIABLE = "TOKENMILL_MODELS"
DEEPEST = 8
"""Folders within folders that are looked into: a model of LM Studio lies three deep."""
MOST = 50_000
"""Files and folders below one folder that are looked at: /proc, or the root of a disk, is no folder of models."""
_SUFFIXES = (".gguf", ".packed")
_PROJECTOR = "mmproj"  # GGUF files of what a model sees with, which are no models


def given_folders(more: Iterable[Path] = ()) -> list[Path]:
    """Return the folders of TOKENMILL_MODELS, separated as PATH is, and more."""
    named = [(each, VARIABLE) for each in os.environ.get(VARIABLE, "").split(os.pathsep) if each]
    return [folder_of_setting(*each).absolute() for each in [*named, *((str(folder), "--dir") for folder in more)]]


def program_folders() -> Iterator[tuple[str, Path]]:
    """Yield programs whose folders are read without being asked for, with their folders."""
    for folder in folder_of("LLAMA_CACHE", ".cache/llama.cpp", "Library/Caches/llama.cpp"):
        yield "llama.cpp", folder
    for name in (".lmstudio/models", ".cache/lm-studio/models"):
        yield "LM Studio", Path.home() / name


def all_entries(more: Iterable[Path] = ()) -> Iterator[FoundModel]:
    """Yield the models of all these folders; a folder that is given and is not there is a problem."""
    for origin, folder in program_folders():
        if is_folder(folder):
            yield from entries_below(origin, folder)
    for folder in given_folders(more):
        if is_folder(folder):
            yield from entries_below(FOLDER, folder)
        else:
            yield FoundModel(str(folder), FOLDER, folder, problem="is no folder that there is")


@dataclass
class _Walk:
    """A walk below `root`. seen: folders, so that links in circles end. left: files and folders that it still takes."""

    origin: str
    root: Path
    seen: set[Path] = field(default_factory=set)
    left: int = MOST


def entries_below(origin: str, root: Path) -> Iterator[FoundModel]:
    """Yield the models below a folder, each once, also in circles of links; of the first MOST entries."""
    walk = _Walk(origin, root)
    yield from _below(walk, root, 0)
    if walk.left < 0:
        problem = f"has more than {MOST:,} files and folders: not all were looked into, give a folder of models"
        yield FoundModel(shown(root), origin, root, problem=problem)


def _below(walk: _Walk, folder: Path, depth: int) -> Iterator[FoundModel]:
    origin, root = walk.origin, walk.root
    try:
        real = folder.resolve()
        if real in walk.seen or depth > DEEPEST or walk.left < 0:
            return
        walk.seen.add(real)
        entries = sorted(islice(folder.iterdir(), walk.left + 1))
        walk.left -= len(entries)
        inner = {entry for entry in entries if entry.is_dir()}
    except (OSError, RuntimeError) as error:  # RuntimeError: a link that leads to itself, before Python 3.13
        why = reason_of(error) if isinstance(error, OSError) else str(error)
        yield FoundModel(str(folder), origin, root, problem=f"cannot be read: {why}")
        return
    names = [entry.name for entry in entries if entry not in inner]
    if "config.json" in names and (weights := find_weights(names)).files:
        yield _directory(origin, root, folder, names, missing_shards(weights.files))
    elif holds_adapter(names):
        yield replace(_directory(origin, root, folder, names, missing_of_adapter(names)), is_adapter=True)
    for first in _first_parts(names):
        yield _file(origin, root, folder, first, names)
    for each in entries:
        if each in inner and not each.name.startswith("."):
            yield from _below(walk, each, depth + 1)


def _directory(origin: str, root: Path, folder: Path, names: list[str], missing: list[str]) -> FoundModel:
    files = tuple(folder / name for name in names if not name.endswith(_SUFFIXES))
    problem = f"lacks {', '.join(missing)}" * bool(missing) or _dangling(files)
    path = None if problem else folder
    return FoundModel(shown(folder), origin, root, path, files, problem, elsewhere=f"rm -r {quote(str(folder))}")


def _file(origin: str, root: Path, folder: Path, first: str, names: list[str]) -> FoundModel:
    files = tuple(folder / part for part in shards_of(first) if part in names)
    missing = [part for part in shards_of(first) if part not in names]
    problem = f"lacks {', '.join(missing)}" * bool(missing) or _dangling(files)
    remove = join(["rm", *map(str, files)])
    path = folder / first
    return FoundModel(shown(path), origin, root, None if problem else path, files, problem, elsewhere=remove)


def _dangling(files: Iterable[Path]) -> str:
    for file in files:
        if file.is_symlink() and not file.exists():
            return f"is a link, or has one: {file.name} leads to {file.readlink()}, which does not exist"
    return ""


def _first_parts(names: Iterable[str]) -> list[str]:
    models = [name for name in names if name.lower().endswith(_SUFFIXES) and not name.startswith((".", _PROJECTOR))]
    return sorted({shards_of(name)[0] for name in models})
