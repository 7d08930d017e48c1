"""An engine for the name of a model: from its packed copy if there is one; otherwise one is kept for the next start."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tokenmill.config import EngineConfig
from tokenmill.engine.build import build
from tokenmill.engine.engine import Engine
from tokenmill.engine.pack import CopyKeeper
from tokenmill.engine.resolve import foresee
from tokenmill.errors import CheckpointError, ConfigError, PackedModelError
from tokenmill.hub.names import locate
from tokenmill.hub.progress import Progress, Silent
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.packed.copies import delete_copy, say_unusable, start_reading
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import PackedReader

__all__ = ["load", "load_files"]

Told = Callable[[int, int], None]  # how much is done, and how much there is


def load(model: str | Path | EngineConfig | None = None, *, progress: Told | None = None, **settings: Any) -> Engine:
    """An engine for a model directory, a `.gguf` file, a hub name or a short name (default: SmolLM2-135M-Instruct).

    Or for an EngineConfig, over which `settings` go: its fields. `progress(done, total)` is called as tensors load,
    also from the thread that reads them.
    """
    if progress is not None and not callable(progress):
        raise ConfigError("progress", progress, "a function of how much is done and how much there is")
    if model is not None and not isinstance(model, EngineConfig):
        settings["model"] = model
    config = replace(model, **settings) if isinstance(model, EngineConfig) else EngineConfig(**settings)
    engine, _ = load_files(locate(config.model), config, Silent() if progress is None else _Told(progress))
    return engine


def load_files(
    path: Path, config: EngineConfig, progress: Progress, reader: PackedReader | None = None
) -> tuple[Engine, Checkpoint]:
    """An engine for the files of a model, and the checkpoint that it was built from.

    `reader` is what start_reading gave for them, if that was called before.
    """
    reader = reader or start_reading(path, config)
    if reader is not None and reader.path != path and (found := _from_copy(path, config, progress, reader)):
        return found
    checkpoint = open_checkpoint(path, reader if reader is not None and reader.path == path else None)
    with CopyKeeper(checkpoint, config, partial(_num_bytes, checkpoint, config)) as keeper:
        try:
            engine = build(checkpoint, config, progress.advance, allocate=keeper.allocate)
        except CheckpointError as error:
            if not keeper.has_failed:
                raise
            keeper.say(error)
            return build(checkpoint, config, progress.advance), checkpoint
        keeper.finish(engine)
    return engine, checkpoint


def _from_copy(
    path: Path, config: EngineConfig, progress: Progress, reader: PackedReader
) -> tuple[Engine, Checkpoint] | None:
    """None if the copy is not what these settings would pack on this machine, or is damaged: then it is deleted."""
    try:
        checkpoint = PackedCheckpoint(reader.path, reader, copy_of=path)
        if _is_made_for(checkpoint, config):
            return build(checkpoint, config, progress.advance), checkpoint
    except PackedModelError as error:
        say_unusable(error)
        delete_copy(reader.path)
    return None


def _is_made_for(checkpoint: PackedCheckpoint, config: EngineConfig) -> bool:
    _, resolved, forms = foresee(config, checkpoint.config)
    wanted = {"program": forms.program_name, "dtype": resolved.dtype, "scheme": forms.scheme_name}
    return all(checkpoint.facts[name] == value for name, value in wanted.items())


def _num_bytes(checkpoint: Checkpoint, config: EngineConfig) -> int:
    """What the packed weights are estimated to take."""
    model, resolved, forms = foresee(config, checkpoint.config)
    return forms.program.weight_bytes(model, getattr(torch, resolved.dtype), forms.scheme)


class _Told(Progress):
    """A function in the place of a Progress."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def advance(self, done: int, total: int) -> None:
        """See Progress."""
        self._told(done, total)
