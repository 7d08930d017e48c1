"""Writes packed models: the weights of a checkpoint in the layout that one program reads, in one file.

The program packs them into the file while the engine is built; then the header is written. `CopyKeeper` does so with a
model that is loaded in order to be used, if its packed copy can be kept.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from tokenmill.config import EngineConfig
from tokenmill.engine.build import build
from tokenmill.engine.engine import Engine
from tokenmill.engine.resolve import foresee
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.memory.arena import Allocation, unreserved
from tokenmill.quant.schemes import find_scheme
from tokenmill.version import __version__
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.load import return_memory
from tokenmill.weights.packed.copies import SMALLEST, copies_folder, copy_name, make_room, writing_copy
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import is_packed_model
from tokenmill.weights.packed.writer import PackedWriter

__all__ = ["CopyKeeper", "save_packed_model"]

log = logging.getLogger(__name__)


def save_packed_model(
    checkpoint: Checkpoint, config: EngineConfig, path: Path, progress: Callable[[int, int], None]
) -> int:
    """Write the weights of a checkpoint as `config`'s program reads them; the size of the file in bytes.

    CheckpointError where `path` cannot be written, or is a file of another kind. ConfigError where the program does not
    pack weights.
    """
    if path.exists() and not is_packed_model(path):
        raise CheckpointError(f"{path} is there and is no packed model: it is not overwritten")
    config = replace(config, max_length=1, block_size=None, max_sequences=1)
    *_, forms = foresee(config, checkpoint.config)
    if not forms.program.packs:
        raise ConfigError("program", forms.program_name, "native: only its weights are packed")
    with closing(PackedWriter(path)) as writer:
        engine = build(checkpoint, config, progress, allocate=lambda *_: writer)
        return _finish(writer, engine, checkpoint)


def _finish(writer: PackedWriter, engine: Engine, checkpoint: Checkpoint) -> int:
    facts = {
        "program": engine.program_name,
        "dtype": engine.config.dtype,
        "scheme": engine.config.scheme,
        "source": str(checkpoint.path.resolve()),
        "fingerprint": engine.fingerprint,
        "config": checkpoint.config,
        "shapes": dict(checkpoint.shapes),
        "generation_defaults": checkpoint.generation_defaults(),
        "rounded": checkpoint.rounded if find_scheme(engine.config.scheme).keeps_codes else "",
        "weights": engine.core.loaded.program.packed_weights(),
        "versions": {"tokenmill": __version__, "torch": torch.__version__},
    }
    return writer.finish(facts, engine.tokenizer)


class CopyKeeper:
    """Keeps the packed copy of a model that is loaded: its weights are packed into the copy and read from there.

    What prevents it is said; then the weights are packed into memory, and the next start takes as long as this one.
    num_bytes: what the packed weights are estimated to take.
    """

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig, num_bytes: Callable[[], int]) -> None:
        self._checkpoint, self._config, self._num_bytes = checkpoint, config, num_bytes
        is_wanted = config.packed_cache and not isinstance(checkpoint, PackedCheckpoint)
        self._name = copy_name(checkpoint.path, config) if is_wanted else None
        self._writer: PackedWriter | None = None
        self._until_kept = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._until_kept.close()
        return_memory()  # of the writer

    @property
    def has_failed(self) -> bool:
        """Whether the system has refused to write what was packed, so that the weights must be packed again."""
        return self._writer is not None and self._writer.failed

    def allocate(self, num_bytes: int, num_pieces: int) -> Allocation:
        """The copy, if it can be kept, otherwise memory. See Allocate."""
        try:
            self._begin()
        except (OSError, CapacityError, CheckpointError) as error:
            self.say(error)
        return self._writer or unreserved(num_bytes, num_pieces)

    def _begin(self) -> None:
        if self._name is None or (size := self._num_bytes()) < SMALLEST:
            return
        path = copies_folder() / self._name
        if self._until_kept.enter_context(writing_copy(path)):
            make_room(size, self._config.packed_limit * 1_000_000)
            self._writer = self._until_kept.enter_context(closing(PackedWriter(path, sync=False)))

    def finish(self, engine: Engine) -> None:
        """Put the copy in its place, unless the model's files were replaced meanwhile."""
        if self._writer is None or copy_name(self._checkpoint.path, self._config) != self._name:
            return
        try:
            _finish(self._writer, engine, self._checkpoint)
        except CheckpointError as error:
            self.say(error)

    def say(self, error: Exception) -> None:
        """Why no copy is kept."""
        log.warning("no packed copy of %s is kept, so it will not start faster: %s", self._checkpoint.path.name, error)
