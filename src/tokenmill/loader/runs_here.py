"""Tells whether a model runs on this machine: the program, its build, dtype and scheme of a load without settings."""

from collections.abc import Mapping
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.kernels.native_library import best_build
from tokenmill.loader.resolve import resolve
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed.reader import is_packed_model, read_header, settings_of


def runs_here(checkpoint: Checkpoint) -> dict[str, Any]:
    """Describe, under "runs", program, dtype and scheme, with the refusals of faster programs; or None and "why_not".

    build: of the native program's library; None with another program.
    """
    settings = settings_of(read_header(checkpoint.path)[0]) if is_packed_model(checkpoint.path) else {}
    try:
        config = read_config(checkpoint.config)
    except TokenmillError as error:
        return {"runs": None, "why_not": str(error)}
    return runs_with(config, settings)


def runs_with(config: ModelConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what runs_here does, for a model that must be loaded with these settings."""
    try:
        resolved = resolve(EngineConfig(**settings), config)
    except TokenmillError as error:
        return {"runs": None, "why_not": str(error)}
    runs = {
        "program": resolved.program_name,
        "build": best_build() if resolved.program_name == "native" else None,
        "dtype": resolved.config.dtype,
        "scheme": resolved.config.scheme,
        "refusals": dict(resolved.program_refusals),
    }
    return {"runs": runs, "why_not": None}
