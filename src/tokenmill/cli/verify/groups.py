"""Receipts in groups of one model and one set of settings, each checked by an engine that is loaded for it."""

import os
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenmill.cli.models import load_engine, read_model_config
from tokenmill.errors import CheckpointError, ConfigError, NoKernel, TokenmillError
from tokenmill.hub.names import locate
from tokenmill.hub.progress import Progress
from tokenmill.receipts.file import ReceiptEntry
from tokenmill.receipts.receipt import Receipt
from tokenmill.receipts.verification import Finding, Verification, refused, with_shown
from tokenmill.registry import ATTEND
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine

MAX_TOGETHER = 8
MIN_CACHE = 4096  # tokens, so that short texts of a group are computed together
AS_RECEIPT = ("program", "dtype", "scheme", "cache_format", "fuse", "device")
ELSEWHERE = ("program", "kernel", "device", "compile")
"""Settings that are left to this machine where the receipt's own cannot run on it."""


class Given(NamedTuple):
    """Options that replace what receipts say: the model, its chat template, settings by their names."""

    model: str | None
    chat_template: Path | None
    settings: Mapping[str, Any]


class GroupOutcome(NamedTuple):
    """The outcome for one entry of a file."""

    where: str
    receipt: Receipt | None
    found: Verification


def check_all(
    entries: List[ReceiptEntry], given: Given, progress: Progress, count: Callable[[], None]
) -> list[GroupOutcome]:
    """Check each entry, and return the outcomes in their order. count: called at each one."""
    found: dict[int, Verification] = {}
    groups: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        if entry.receipt is None:
            error = (entry.error or "").removeprefix(entry.where).lstrip(": ")
            found[number] = Verification("unreadable", (), (error,))
            count()
        else:
            groups.setdefault(_kind(entry.receipt), []).append(number)
    for numbers in groups.values():
        receipts = [receipt for number in numbers if (receipt := entries[number].receipt) is not None]
        for place, outcome in _Group(receipts, given, progress).outcomes(count):
            found[numbers[place]] = with_shown(outcome, *entries[numbers[place]].shown)
    return [GroupOutcome(entry.where, entry.receipt, found[number]) for number, entry in enumerate(entries)]


def _kind(receipt: Receipt) -> str:
    """Return what receipts that one engine can check have alike."""
    engine = {name: value for name, value in receipt.engine.items() if name not in ("build", "machine", "torch")}
    return repr((receipt.model["name"], sorted(engine.items())))


class _Group:
    """Receipts that one engine can check."""

    def __init__(self, receipts: List[Receipt], given: Given, progress: Progress) -> None:
        self._receipts, self._given, self._progress = receipts, given, progress
        self._model = given.model or receipts[0].model["name"]

    def outcomes(self, count: Callable[[], None]) -> list[tuple[int, Verification]]:
        """Check each receipt, and return the outcomes with their places."""
        found: list[tuple[int, Verification]] = []
        try:
            with self._load() as engine:
                for place, outcome in engine.verify_each(self._receipts):
                    found.append((place, outcome))
                    count()
        except ConfigError as error:
            missing = self._left(found, refused([Finding("engine", f"no engine can have these settings: {error}")]))
        except TokenmillError as error:
            missing = self._left(found, Verification("unchecked", (), (str(error),)))
        else:
            return found
        for _ in missing:
            count()
        return [*found, *missing]

    def _left(self, found: list[tuple[int, Verification]], outcome: Verification) -> list[tuple[int, Verification]]:
        done = {place for place, _ in found}
        return [(place, outcome) for place in range(len(self._receipts)) if place not in done]

    def _load(self) -> "Engine":
        """Load the model as the receipts say, or, where that cannot run here, as this machine can."""
        if self._given.model is None:
            self._check_there()
        config = self._config()
        try:
            return load_engine(config, self._progress, self._given.chat_template)
        except (ConfigError, NoKernel):
            default, typed = EngineConfig(), self._given.settings
            config = replace(config, **{name: getattr(default, name) for name in ELSEWHERE if name not in typed})
            return load_engine(config, self._progress, self._given.chat_template)

    def _check_there(self) -> None:
        """Fetch nothing that a file names which may be anybody's."""
        try:
            locate(self._model, offline=True)
        except CheckpointError as error:
            remedy = f"tokenmill pull {self._model} fetches it where that is its name, and --model says where it lies"
            raise CheckpointError(f"{error}. The model is not here: {remedy}") from None

    def _config(self) -> EngineConfig:
        engine, count = self._receipts[0].engine, len(self._receipts)
        mode, phases, backend = engine["compile"]
        settings = {name: engine[name] for name in AS_RECEIPT}
        settings |= {"compile": mode, "compile_phases": phases, "compile_backend": backend}
        if engine["kernel"] in ATTEND:
            settings["kernel"] = engine["kernel"]
        if engine["threads"] is not None and engine["threads"] <= (os.cpu_count() or 1):
            settings["threads"] = engine["threads"]
        longest = max(len(each.prompt) + (each.sampling.max_new_tokens or 0) for each in self._receipts)
        context = read_model_config(self._model, self._progress).context
        fed = min(max(len(each.prompt) + len(each.tokens) for each in self._receipts), context)
        sizes = {
            "max_length": context if engine["long_rope"] else min(longest, context),
            "max_sequences": min(count, MAX_TOGETHER),
            "cache_tokens": max(fed + 1, MIN_CACHE if count > 1 else 0),
        }
        return EngineConfig(model=self._model, **{**settings, **sizes, **self._given.settings})
