"""The names and keys that families with Mamba 2 layers share."""

from math import inf
from typing import Any

from tokenmill.model.config import ConfigReader

_NAMES = {
    "in_proj{p}": "inner{p}",
    "conv1d.weight": "conv | depthwise",
    "conv1d.bias": "conv_bias",
    "dt_bias": "dt_bias",
    "A_log": "A_log",
    "D": "D",
    "norm.weight": "norm.weight",
    "out_proj{p}": "out{p}",
}


def mamba_names(prefix: str) -> dict[str, str]:
    """Name the tensors of a Mamba 2 mixer, whose names begin with the prefix."""
    return {f"{prefix}{name}": f"layers.{{i}}.mamba2.{ours}" for name, ours in _NAMES.items()}


def read_limits(reader: ConfigReader, key: str) -> tuple[float, float]:
    """Read the limits of a head's step; infinity where the key is absent, and as transformers 5 writes it."""
    given = reader.take(key, None)
    found = [0.0, inf] if given is None else [_limit(each) for each in given] if isinstance(given, list) else []
    if len(found) != 2 or None in found or not 0 <= found[0] < found[1]:
        raise reader.refuse(key, given, "two numbers, of which the first is at least 0 and the second above it")
    return found[0], found[1]


def _limit(value: Any) -> Any:
    if value == {"__float__": "Infinity"}:
        return inf
    return float(value) if type(value) in (int, float) else None
