"""Writes packed models: the weights of a checkpoint in the layout that one program reads, in one file."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from tokenmill.config import EngineConfig
from tokenmill.engine.build import build
from tokenmill.engine.engine import Engine
from tokenmill.errors import CheckpointError
from tokenmill.quant.schemes import find_scheme
from tokenmill.version import __version__
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed.model import write_packed_model
from tokenmill.weights.packed.reader import is_packed_model

__all__ = ["save_packed_model", "write_packed_engine"]


def save_packed_model(
    checkpoint: Checkpoint, config: EngineConfig, path: Path, progress: Callable[[int, int], None]
) -> int:
    """Write the weights of a checkpoint as `config`'s program reads them; the size of the file in bytes.

    CheckpointError where `path` cannot be written, or is a file of another kind. ConfigError where the program does not
    pack weights.
    """
    if path.exists() and not is_packed_model(path):
        raise CheckpointError(f"{path} is there and is no packed model: it is not overwritten")
    engine = build(checkpoint, replace(config, max_length=1, block_size=None, max_sequences=1))
    return write_packed_engine(engine, checkpoint, path, progress)


def write_packed_engine(
    engine: Engine, checkpoint: Checkpoint, path: Path, progress: Callable[[int, int], None], sync: bool = True
) -> int:
    """Write the weights of an engine that was built from a checkpoint; see save_packed_model."""
    weights, tensors = engine.core.loaded.program.packed_weights()
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
        "weights": weights,
        "versions": {"tokenmill": __version__, "torch": torch.__version__},
    }
    return write_packed_model(path, facts, engine.tokenizer, tensors, progress, sync)
