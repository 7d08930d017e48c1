"""Writes AOT packages: a model's layers compiled ahead of time, as a directory. Importing this loads a compiler."""

from dataclasses import replace
from pathlib import Path

import torch

from tokenmill.hub.progress import Progress
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.program.aot.exporting import write_package
from tokenmill.program.aot.package import made_for
from tokenmill.program.compiled.micro_batches import MicroBatched
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.version import __version__
from tokenmill.weights.checkpoint import Checkpoint


def save_aot_package(checkpoint: Checkpoint, config: EngineConfig, folder: Path, progress: Progress) -> int:
    """Compile a model and write the code; return its bytes. PackageMismatch where `folder` cannot be written."""
    config = replace(config, program="compiled", compile="no", max_sequences=1)
    loaded = load_model(checkpoint, resolve_checkpoint(checkpoint, config), progress.advance)
    facts = {
        **made_for(loaded.config, loaded.fingerprint, torch.device(loaded.config.device)),
        "source": str(checkpoint.path.resolve()),
        "tokenmill": __version__,
    }
    program = loaded.program
    assert isinstance(program, MicroBatched), "program compiled is one"
    return write_package(folder, program.decoder, loaded.pool, program.padded, config.compile_phases, facts, progress)
