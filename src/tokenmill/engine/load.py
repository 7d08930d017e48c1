"""An engine for the name of a model: from its packed copy if there is one; otherwise one is kept for the next start."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from tokenmill.engine.build import with_loop
from tokenmill.engine.engine import Engine
from tokenmill.errors import ConfigError
from tokenmill.hub.names import locate
from tokenmill.hub.progress import Progress, Silent
from tokenmill.loader.packed_copy import load_with_copy, open_model
from tokenmill.settings.engine_config import EngineConfig, EngineKeywords
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed.reader import PackedReader

__all__ = ["load", "load_files"]

Told = Callable[[int, int], None]  # how much is done, and how much there is


def load(
    model: str | Path | EngineConfig | None = None, *, progress: Told | None = None, **settings: Unpack[EngineKeywords]
) -> Engine:
    """An engine for a model directory, a `.gguf` file, a hub name or a short name (default: SmolLM2-135M-Instruct).

    Or for an EngineConfig, over which `settings` go: its fields. `progress(done, total)` is called as tensors load,
    also from the thread that reads them.
    """
    if progress is not None and not callable(progress):
        raise ConfigError("progress", progress, "a function of how much is done and how much there is")
    given: dict[str, Any] = {**settings}
    if model is not None and not isinstance(model, EngineConfig):
        given["model"] = model
    config = replace(model, **given) if isinstance(model, EngineConfig) else EngineConfig(**given)
    engine, _ = load_files(locate(config.model), config, Silent() if progress is None else _Told(progress))
    return engine


def load_files(
    path: Path, config: EngineConfig, progress: Progress, reader: PackedReader | None = None
) -> tuple[Engine, Checkpoint]:
    """An engine for the files of a model, and the checkpoint that it was built from.

    `reader` is what start_reading gave for them, if that was called before.
    """
    loaded, checkpoint = load_with_copy(*open_model(path, config, reader), progress.advance)
    return with_loop(loaded, checkpoint, progress.advance), checkpoint


class _Told(Progress):
    """A function in the place of a Progress."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def advance(self, done: int, total: int) -> None:
        """See Progress."""
        self._told(done, total)
