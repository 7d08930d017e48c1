"""Every model and adapter on this machine, with its facts and kept files; the pairs of entries that are one model."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokenmill.errors import CheckpointError
from tokenmill.hub.places.entry import FoundModel, real_path
from tokenmill.hub.places.here import entries_here
from tokenmill.loader.at_hand.adapters import FoundAdapter, adapter_of
from tokenmill.loader.at_hand.facts import Facts, facts_of, plain_title
from tokenmill.loader.at_hand.headers import KnownHeaders
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


class Here(NamedTuple):
    """Models and adapters. others: entries that are neither, with the reason."""

    models: list[Model]
    adapters: list[FoundAdapter]
    others: list[FoundModel]


def models_here(more: Iterable[Path] = ()) -> Here:
    """List the models, the adapters, and the entries that are neither."""
    kept, headers, here = all_kept(), KnownHeaders(), Here([], [], [])
    for entry in entries_here(more):
        if entry.path is None:
            here.others.append(entry)
            continue
        facts = None if entry.is_adapter else facts_of(entry.path, headers)
        if (facts is None or facts.runs is None) and (adapter := adapter_of(entry)) is not None:
            here.adapters.append(adapter)
        elif facts is not None:
            here.models.append(Model(entry, facts, kept.get(str(real_path(entry.path)), KeptFiles())))
    headers.save()
    return here


def pairs_of(models: Sequence[Model]) -> list[Pair]:
    """Pair the models that are there twice: the same bytes, or the same sizes under the same name in another form. Of
    several, each later one is paired with the first.
    """
    groups: dict[tuple[object, ...], list[Model]] = defaultdict(list)
    for model in models:
        if model.facts.shape:
            groups[model.facts.shape].append(model)
    return [pair for group in groups.values() for pair in _pairs_of_shape(group)]


def _pairs_of_shape(models: Sequence[Model]) -> Iterator[Pair]:
    sizes = Counter(model.entry.num_bytes for model in models)
    by_digests: dict[object, Model] = {}
    by_title: dict[str, Model] = {}
    for model in models:
        name, num_bytes = model.entry.name, model.entry.num_bytes
        if sizes[num_bytes] > 1:  # only models of equal size can have equal bytes
            first = by_digests.setdefault((num_bytes, _digests(model)), model)
            if first is not model:
                # Names of one file, which takes its place once, are no pair.
                if not first.entry.inodes() & model.entry.inodes():
                    yield Pair(first.entry.name, name, is_same=True)
                by_title |= dict.fromkeys(_titles(model) - by_title.keys(), first)
                continue
        others = {id(other): other for title in sorted(_titles(model)) if (other := by_title.setdefault(title, model))}
        for other in others.values():
            if other is not model:
                yield Pair(other.entry.name, name, is_same=False)


def _digests(model: Model) -> object:
    """Digest a file or a directory; return an object that equals nothing where it cannot be read."""
    assert model.entry.path is not None
    try:
        return tuple(fingerprint(model.entry.path).items())
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
