"""Every model on this machine, with its facts and kept files; the pairs of entries that are one model."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tokenmill.errors import CheckpointError
from tokenmill.hub.places.entry import FoundModel, real_path
from tokenmill.hub.places.here import entries_here
from tokenmill.loader.at_hand.facts import Facts, facts_of, plain_title
from tokenmill.loader.at_hand.kept import KeptFiles, all_kept
from tokenmill.weights.fingerprint import fingerprint

_SAYS_NOTHING = frozenset({"", "model", "ggmlmodel", "main", "consolidated", "weights", "latest", "hf"})
"""Plain titles that any model may have."""


@dataclass(frozen=True)
class Model:
    """An entry whose headers were read."""

    entry: FoundModel
    facts: Facts
    kept: KeptFiles


@dataclass(frozen=True)
class Pair:
    """Two entries that are one model. is_same: the same bytes twice; otherwise two forms of the model."""

    first: str
    second: str
    is_same: bool


def models_here(more: Iterable[Path] = ()) -> tuple[list[Model], list[FoundModel]]:
    """List the models, and the entries that are no models, with the reason."""
    kept, models, others = all_kept(), list[Model](), list[FoundModel]()
    for entry in entries_here(more):
        if entry.path is None:
            others.append(entry)
            continue
        models.append(Model(entry, facts_of(entry.path), kept.get(str(real_path(entry.path)), KeptFiles())))
    return models, others


def pairs_of(models: Sequence[Model]) -> list[Pair]:
    """Pair the models that are there twice: the same bytes, or the same sizes under the same name in another form."""
    groups: dict[tuple[object, ...], list[Model]] = defaultdict(list)
    for model in models:
        if model.facts.shape:
            groups[model.facts.shape].append(model)
    return [pair for group in groups.values() for a, b in combinations(group, 2) if (pair := _pair(a, b)) is not None]


def _pair(first: Model, second: Model) -> Pair | None:
    names = first.entry.name, second.entry.name
    if first.entry.inodes() & second.entry.inodes():
        return None  # names of one file, which takes its place once
    if first.entry.num_bytes == second.entry.num_bytes and _digests(first) == _digests(second):
        return Pair(*names, is_same=True)
    return Pair(*names, is_same=False) if _titles(first) & _titles(second) else None


def _digests(model: Model) -> object:
    """Digest a file or a directory; return an object that equals nothing where it cannot be read."""
    assert model.entry.path is not None
    try:
        return fingerprint(model.entry.path)
    except CheckpointError:
        return object()


def _titles(model: Model) -> set[str]:
    """List the plain titles of a model: its names without their forms."""
    entry = model.entry
    assert entry.path is not None
    names = [*model.facts.titles, entry.path.name if entry.origin != "Ollama" else ""]
    if entry.commit:
        names.append(entry.name.partition(":")[0].split("/tree/")[0].split("/blob/")[0])
        names = [name for name in names if name != entry.commit]
    return {plain_title(name) for name in names} - _SAYS_NOTHING
