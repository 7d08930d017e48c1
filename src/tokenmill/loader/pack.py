"""Writes packed models: the weights of a checkpoint in the layout that one program reads, in one file.

The program packs them into the file while the model is loaded; then the header is written.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.quant.schemes import find_scheme
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.version import __version__
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.generation import usable
from tokenmill.weights.packed.reader import is_packed_model
from tokenmill.weights.packed.writer import PackedWriter


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
    resolved = resolve_checkpoint(checkpoint, config)
    if not resolved.program.packs:
        raise ConfigError("program", resolved.program_name, "native: only its weights are packed")
    with closing(PackedWriter(path)) as writer:
        loaded = load_model(checkpoint, resolved, progress, allocate=lambda *_: writer)
        return finish_packed(writer, loaded, checkpoint)


def finish_packed(writer: PackedWriter, loaded: LoadedModel, checkpoint: Checkpoint, copy: str | None = None) -> int:
    """Write the header of a packed model whose weights the writer has, and put it in its place; its size in bytes.

    copy: the name of the packed copy that it is.
    """
    recommended = usable(checkpoint)
    facts = {
        "program": loaded.program_name,
        "dtype": loaded.config.dtype,
        "scheme": loaded.config.scheme,
        "source": str(checkpoint.path.resolve()),
        "copy": copy,
        "fingerprint": loaded.fingerprint,
        "config": checkpoint.config,
        "shapes": dict(checkpoint.shapes),
        "in_gguf": checkpoint.in_gguf,
        "generation_defaults": recommended,
        "generation_origin": recommended.origin,
        "rounded": checkpoint.rounded if find_scheme(loaded.config.scheme).keeps_codes else "",
        "dequantized": checkpoint.dequantized,
        "weights": loaded.program.packed_weights(),
        "versions": {"tokenmill": __version__, "torch": torch.__version__},
    }
    return writer.finish(facts, loaded.tokenizer)
