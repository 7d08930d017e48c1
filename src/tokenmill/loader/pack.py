"""Writes packed models: the weights of a checkpoint in the layout that one program reads, in one file.

The program packs them into the file while the model is loaded; then the header is written.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.loader.load_model import load_model, resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.settings.engine_config import DTYPES, EngineConfig
from tokenmill.version import __version__
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.generation import usable
from tokenmill.weights.packed.reader import ANY_DTYPE, is_packed_model
from tokenmill.weights.packed.writer import PackedWriter
from tokenmill.weights.pooling import packed_pooling
from tokenmill.weights.source import WeightSource


def save_packed_model(
    checkpoint: Checkpoint, config: EngineConfig, path: Path, progress: Callable[[int, int], None]
) -> int:
    """Write the weights of a checkpoint as `config`'s program reads them; return the size of the file in bytes.

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
        return writer.finish(packed_facts(loaded, checkpoint), loaded.tokenizer)


def other_dtypes(loaded: LoadedModel, checkpoint: Checkpoint) -> Iterator[WeightSource]:
    """Yield the weights in other dtypes of a model whose matrices are the checkpoint's codes, equal in all of them."""
    resolved = loaded.resolved
    if resolved.scheme.keeps_codes:
        for dtype in DTYPES:
            if dtype != resolved.config.dtype:
                yield WeightSource(checkpoint, resolved.model, resolved.scheme, getattr(torch, dtype))


def packed_facts(loaded: LoadedModel, checkpoint: Checkpoint, others: Iterable[WeightSource] = ()) -> dict[str, Any]:
    """Make the header of a packed model, whose weights the program has packed. others: see packed_weights."""
    recommended, weights = usable(checkpoint), loaded.program.packed_weights(others)
    return {
        "program": loaded.program_name,
        "dtype": ANY_DTYPE if len(weights["dtypes"]) > 1 else loaded.config.dtype,
        "scheme": loaded.config.scheme,
        "source": str(checkpoint.path.resolve()),
        "copy": None,
        "fingerprint": loaded.fingerprint,
        "config": checkpoint.config,
        "shapes": dict(checkpoint.shapes),
        "in_gguf": checkpoint.in_gguf,
        "generation_defaults": recommended,
        "generation_origin": recommended.origin,
        "rounded": checkpoint.rounded if loaded.resolved.scheme.keeps_codes else "",
        "dequantized": checkpoint.dequantized,
        "pooling": packed_pooling(checkpoint.path),
        "weights": weights,
        "versions": {"tokenmill": __version__, "torch": torch.__version__},
    }
