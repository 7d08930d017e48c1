"""Whether a model runs on this machine: the program, dtype and scheme that a load without settings would take."""

from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.loader.resolve import resolve
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.packed.reader import is_packed_model, read_header


def runs_here(checkpoint: Checkpoint) -> dict[str, Any]:
    """The program, dtype and scheme under "runs", with what is said against faster programs; or None and "why_not"."""
    settings = {}
    if is_packed_model(checkpoint.path):
        settings = {name: read_header(checkpoint.path)[0][name] for name in ("program", "dtype", "scheme")}
    try:
        resolved = resolve(EngineConfig(**settings), read_config(checkpoint.config))
    except TokenmillError as error:
        return {"runs": None, "why_not": str(error)}
    runs = {"program": resolved.program_name, "dtype": resolved.config.dtype, "scheme": resolved.config.scheme}
    return {"runs": {**runs, "refusals": dict(resolved.program_refusals)}, "why_not": None}
