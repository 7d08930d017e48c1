"""Whose rows these are: what must be alike for cached rows to mean the same somewhere else."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tokenmill.registry import resolve

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine

__all__ = ["whose"]


def whose(engine: "Engine") -> dict[str, Any]:
    """Model, settings, and who computed: the header of a file. `model` and `versions` are told, not compared."""
    config = engine.config
    return {
        "model": str(Path(config.model).resolve()) if Path(config.model).exists() else config.model,
        "fingerprint": engine.fingerprint,
        "shape": {name: getattr(engine.model_config, name) for name in ("num_layers", "num_kv_heads", "head_dim")},
        "rope": repr(engine.model_config.rope),
        "cache_format": config.cache_format,
        "dtype": config.dtype,
        "scheme": config.scheme,
        "program": engine.program_name,
        "versions": {"tokenmill": resolve("tokenmill:__version__"), "torch": str(torch.__version__)},
    }
