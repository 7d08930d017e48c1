"""Loads a model from its packed copy if there is one, and otherwise keeps a copy for the next load."""

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tokenmill.errors import CapacityError, CheckpointError, PackedModelError
from tokenmill.loader.copies import (
    SMALLEST,
    copies_folder,
    copies_limit,
    copy_names,
    delete_copy,
    room_for_copy,
    say_unusable,
    start_reading,
    writing_copy,
)
from tokenmill.loader.default_length import follow_context
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.pack import other_dtypes, packed_facts
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.memory.arena import Allocation, unreserved
from tokenmill.parallel.rendezvous import torchrun_size
from tokenmill.settings.engine_config import EngineConfig, ResolvedConfig
from tokenmill.units import size
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import PackedReader, settings_of
from tokenmill.weights.packed.writer import PackedWriter
from tokenmill.weights.source import Progress, return_memory

log = logging.getLogger(__name__)

KEPT = (
    "a packed copy of %s is kept for faster starts, %s in %s; packed_cache=False keeps none, `tokenmill cache clear` "
    "deletes it"
)
Adjust = Callable[[EngineConfig], EngineConfig]


def open_model(
    path: Path, config: EngineConfig, reader: PackedReader | None = None, adjust: Adjust | None = None
) -> tuple[Checkpoint, ResolvedModel]:
    """Open a model's files, or the packed copy of them, and resolve it with these settings.

    `reader` is what start_reading returned for them, if it was called before. max_length follows the model's context
    where it is not given; `adjust` changes settings after that.
    """
    checkpoint = open_files(path, config, reader)
    if config.tensor_parallel == 1 or torchrun_size() is None:  # each rank would find other free memory
        config, why = follow_context(config, lambda given: resolve_checkpoint(checkpoint, given))
        if why:
            log.info("%s", why)
    return resolve_opened(checkpoint, config if adjust is None else adjust(config))


def open_files(path: Path, config: EngineConfig, reader: PackedReader | None = None) -> Checkpoint:
    """Open the packed copy of a model if one was kept for these settings, or else the model's own files."""
    reader = reader or start_reading(path, config)
    if reader is None or reader.path == path:
        return open_checkpoint(path, reader)
    try:
        return PackedCheckpoint(reader.path, reader, copy_of=path)
    except PackedModelError as error:
        _give_up(reader.path, error)
    return open_checkpoint(path)


def resolve_opened(checkpoint: Checkpoint, config: EngineConfig) -> tuple[Checkpoint, ResolvedModel]:
    """Resolve a model that `open_files` has opened. The copy that these settings resolve to takes the place of another
    one, and the model's own files where there is none.
    """
    if not isinstance(checkpoint, PackedCheckpoint) or not checkpoint.is_copy:
        return checkpoint, resolve_checkpoint(checkpoint, config)
    try:
        resolved = resolve_checkpoint(checkpoint, config)
        wanted = _wanted(resolved)
        if all(getattr(wanted, name) == value for name, value in settings_of(checkpoint.facts).items()):
            return checkpoint, resolved
    except PackedModelError as error:
        _give_up(checkpoint.file, error)
        return _opened(checkpoint.path, config)
    other = open_files(checkpoint.path, wanted)
    return other, resolve_checkpoint(other, config)


def _wanted(resolved: ResolvedModel) -> ResolvedConfig:
    """Make the settings that name the copy of a resolved model."""
    return replace(resolved.config, program=resolved.program_name)


def _opened(path: Path, config: EngineConfig) -> tuple[Checkpoint, ResolvedModel]:
    checkpoint = open_checkpoint(path)
    return checkpoint, resolve_checkpoint(checkpoint, config)


def load_with_copy(
    checkpoint: Checkpoint, resolved: ResolvedModel, progress: Progress | None
) -> tuple[LoadedModel, Checkpoint]:
    """Load the model; also return the checkpoint that it came from: another one, if the given one is a damaged copy.

    Its weights are packed into a copy, unless they come from one.
    """
    if isinstance(checkpoint, PackedCheckpoint) and checkpoint.is_copy:
        try:
            return load_model(checkpoint, resolved, progress), checkpoint
        except PackedModelError as error:
            _give_up(checkpoint.file, error)
            checkpoint, resolved = _opened(checkpoint.path, resolved.given)
    with _Keeper(checkpoint, resolved) as keeper:
        try:
            loaded = load_model(checkpoint, resolved, progress, allocate=keeper.allocate)
        except CheckpointError as error:
            if not keeper.has_failed:
                raise
            keeper.say(error)
            return load_model(checkpoint, resolved, progress), checkpoint
        keeper.finish(loaded)
    return loaded, checkpoint


def _give_up(copy: Path, error: PackedModelError) -> None:
    """Say what is wrong with a copy, and delete it where that is permitted."""
    say_unusable(error)
    with suppress(OSError):
        delete_copy(copy)


class _Keeper:
    """The keeper of the packed copy of a model that is loaded: weights are packed into the copy and read from there.

    Where something prevents a copy, it is said; then the weights are packed into memory, and the next start is no
    faster.
    """

    def __init__(self, checkpoint: Checkpoint, resolved: ResolvedModel) -> None:
        self._checkpoint, self._resolved, self._config = checkpoint, resolved, _wanted(resolved)
        has_files = not isinstance(checkpoint, PackedCheckpoint) and checkpoint.path.exists()  # a shape has none
        is_kept = (
            has_files and self._config.packed_cache and self._config.tensor_parallel == 1
        )  # a rank packs only a part
        self._names = copy_names(checkpoint.path, self._config) if is_kept else {}
        self._writer: PackedWriter | None = None
        self._until_kept = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._until_kept.close()
        return_memory()  # of the writer

    @property
    def has_failed(self) -> bool:
        """Say whether the system has refused to write the packed weights, so that they must be packed again."""
        return self._writer is not None and self._writer.failed

    def allocate(self, num_bytes: int, num_pieces: int) -> Allocation:
        """Give the memory of the copy if it can be kept, otherwise other memory. See Allocate."""
        try:
            self._begin()
        except (OSError, CapacityError, CheckpointError) as error:
            self.say(error)
        return self._writer or unreserved(num_bytes, num_pieces)

    def _begin(self) -> None:
        if not self._names or self._resolved.weight_bytes < SMALLEST:
            return
        path, num_bytes = copies_folder() / self._names[self._config.dtype], self._resolved.copy_bytes
        if self._until_kept.enter_context(writing_copy(path)):
            with room_for_copy(num_bytes, copies_limit(self._config.packed_limit)) as has_room:
                if has_room:
                    writer = PackedWriter(path, sync=False, num_bytes=num_bytes)
                    self._writer = self._until_kept.enter_context(closing(writer))

    def finish(self, loaded: LoadedModel) -> None:
        """Put the copy in its place, unless the model's files were replaced or deleted meanwhile."""
        if self._writer is None:
            return
        try:
            facts = packed_facts(loaded, self._checkpoint, other_dtypes(loaded, self._checkpoint))
            if copy_names(self._checkpoint.path, self._config) == self._names:
                named = {**facts, "copy": self._names[facts["dtype"]]}
                num_bytes = self._writer.finish(named, loaded.tokenizer)
                log.info(KEPT, self._checkpoint.path.name, size(num_bytes), copies_folder())
        except CheckpointError as error:
            self.say(error)

    def say(self, error: Exception) -> None:
        """Warn why no copy is kept."""
        log.warning("no packed copy of %s is kept, so it will not start faster: %s", self._checkpoint.path.name, error)
