"""The adapters of an engine: loading them beside the model, and finding the one that a request names."""

import logging
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

import torch

from tokenmill.errors import CapacityError, ConfigError, RequestError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.program.handed import HandsOn
from tokenmill.registry import ADAPTED, lookup
from tokenmill.value_reader import brief, path_of
from tokenmill.weights.adapters.adapter import Adapter
from tokenmill.weights.adapters.model_weights import ModelWeights
from tokenmill.weights.adapters.named import named_adapters
from tokenmill.weights.adapters.read import open_adapter

log = logging.getLogger(__name__)

OF_ALL = "every text of this engine is computed with that one (adapter)"


class Adapters:
    """The adapters of one model, by name. path: of the model's files. of_settings: those that its settings name.

    A text that runs goes on with its adapter when that is unloaded, or another one is loaded under its name; the memory
    is given back when the last such text has ended.
    """

    def __init__(self, loaded: LoadedModel, path: Path) -> None:
        self._loaded, self._path, self._lock = loaded, path, Lock()
        self._by_name: dict[str, Adapter] = {}
        self._of_all: Adapter | None = None
        config = loaded.config
        for name, where in named_adapters(config.lora_modules).items():
            self.load(name, path_of(where))
        if config.adapter is not None:
            path = path_of(config.adapter)
            self._of_all = self.load(path.name if path.is_dir() else path.stem, path)
        self.of_settings = tuple(self._by_name.values())

    @property
    def by_name(self) -> Mapping[str, Adapter]:
        return dict(self._by_name)

    def load(self, name: str, path: Path, *, replace: bool = False) -> Adapter:
        """Read an adapter, whole, and have the program take it. replace: under a name that is taken.

        ConfigError for a name that is taken, or a program that computes no adapters; CheckpointError for an adapter
        that does not fit the model, with every tensor by name.
        """
        if not isinstance(name, str) or not name.strip():
            raise ConfigError("adapter", name, "a name that is not empty")
        if reason := refusal(self._loaded):
            raise ConfigError("adapter", name, f"none: {reason}")
        with self._lock:  # the whole of it, or two that load at once would both find a place
            self._check_place(name, replace)
            adapter = self._read(name, path)
            lookup(ADAPTED, self._loaded.program_name, "program")(self._loaded.program, adapter)
            self._tell_ranks(adapter)
            self._by_name[name] = adapter
        return adapter

    def _check_place(self, name: str, replace: bool) -> None:
        most = self._loaded.config.max_loras
        if name in self._by_name and not replace:
            raise ConfigError("adapter", name, "a name that no adapter has yet: unload that one first, or replace it")
        if self._of_all is not None and name == self._of_all.name:
            raise ConfigError("adapter", name, f"another name: {OF_ALL}")
        if name not in self._by_name and len(self._by_name) >= most:
            raise CapacityError("adapters", len(self._by_name) + 1, most, "max_loras, or unload one")

    def _read(self, name: str, path: Path) -> Adapter:
        loaded, resolved = self._loaded, self._loaded.resolved
        base = ModelWeights(self._path, resolved.model, resolved.scheme, loaded.fingerprint)
        dtype = getattr(torch, resolved.config.dtype)
        adapter = open_adapter(path, name, resolved.model, dtype, base, resolved.config.max_lora_rank)
        if adapter.left_out:
            count, first = len(adapter.left_out), adapter.left_out[0]
            log.warning("%s: left out are %d modules that text does not pass, such as %s", path, count, first)
        return adapter

    def unload(self, name: str) -> None:
        """Forget an adapter. RequestError for a name that none has, and for the adapter of every text."""
        if self.find(name) is self._of_all:
            raise RequestError(f"adapter {brief(name)} stays: {OF_ALL}", "adapter")
        with self._lock:
            self._by_name.pop(name, None)
            self._tell_ranks(None)

    def _tell_ranks(self, adapter: Adapter | None) -> None:
        if isinstance(self._loaded.program, HandsOn):
            self._loaded.program.hand_on(adapter)

    def find(self, name: str | None) -> Adapter | None:
        """Find the adapter of that name; for None the one of every text, if any. RequestError for other names."""
        if name is None:
            return self._of_all
        found = self._by_name.get(name) if isinstance(name, str) else None
        if found is None:
            there = ", ".join(sorted(self._by_name)) or "there is none"
            raise RequestError(f"adapter {brief(name)} is not loaded: {there}", "adapter")
        return found

    def with_digest(self, digest: str) -> Adapter | None:
        """Find an adapter by the sha256 of its bytes, in hexadecimal digits, as files and receipts name it."""
        return next((each for each in self.by_name.values() if each.digest.hex() == digest), None)


def refusal(loaded: LoadedModel) -> str:
    """Say why a model computes no adapters; empty if it does."""
    if loaded.program_name not in ADAPTED:
        able = ", ".join(ADAPTED)
        return f"program {loaded.program_name} computes no adapters, only {able}; or merge it (tokenmill merge)"
    return ""
