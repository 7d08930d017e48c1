"""Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), as a table of cosines and sines by position.

A head's first `dim` entries are paired (i, i + dim/2) and each pair is rotated by position · inv_freq[i]. The kinds
differ only in inv_freq and in a factor on the result. The table is made once, so a token's angle is a function of its
position alone. For "dynamic" (NTK) that means: beyond the trained context each position is rotated by the base that
fits its own length, as transformers computes it when it decodes with a cache; the length of the prompt cannot matter.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader, Rope
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief

__all__ = ["KINDS", "Angles", "RotaryTable", "apply_rotary", "apply_rotary_in_halves", "read_rope"]

Angles = tuple[Tensor, Tensor]
"""cos and sin for each token of a step, [T, 1, dim] each."""


class RotaryTable(nn.Module):
    """cos and sin of shape [P, dim], for every position that the engine may use."""

    cos_PH: Tensor
    sin_PH: Tensor

    def __init__(self, rope: Rope, num_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        angles_PH, factor = _angles(rope, num_positions)
        angles_PH = torch.cat((angles_PH, angles_PH), dim=-1)
        self.register_buffer("cos_PH", (angles_PH.cos() * factor).to(device, dtype), persistent=False)
        self.register_buffer("sin_PH", (angles_PH.sin() * factor).to(device, dtype), persistent=False)

    def forward(self, positions_T: Tensor) -> Angles:
        """The rows for these positions."""
        return self.cos_PH[positions_T].unsqueeze(1), self.sin_PH[positions_T].unsqueeze(1)


def apply_rotary(x_TNH: Tensor, cos_T1H: Tensor, sin_T1H: Tensor) -> Tensor:
    """Rotate the leading entries of every head, as many as the table is wide; the others are unchanged."""
    dim = cos_T1H.shape[-1]
    rotated = x_TNH if dim == x_TNH.shape[-1] else x_TNH[..., :dim]
    half = dim // 2
    swapped = torch.cat((-rotated[..., half:], rotated[..., :half]), dim=-1)
    rotated = rotated * cos_T1H + swapped * sin_T1H
    return rotated if dim == x_TNH.shape[-1] else torch.cat((rotated, x_TNH[..., dim:]), dim=-1)


def apply_rotary_in_halves(x_TNH: Tensor, cos_T1H: Tensor, sin_T1H: Tensor) -> Tensor:
    """What apply_rotary computes, bit for bit, without a swapped copy."""
    dim = cos_T1H.shape[-1]
    half = dim // 2
    rotated = x_TNH[..., :dim] * cos_T1H
    rotated[..., :half] -= x_TNH[..., half:dim] * sin_T1H[..., :half]
    rotated[..., half:] += x_TNH[..., :half] * sin_T1H[..., half:]
    return rotated if dim == x_TNH.shape[-1] else torch.cat((rotated, x_TNH[..., dim:]), dim=-1)


def _angles(rope: Rope, num_positions: int) -> tuple[Tensor, float]:
    numbers = dict(rope.scaling)
    positions_P = torch.arange(num_positions, dtype=torch.float32)
    if rope.kind == "dynamic":
        return positions_P[:, None] * _dynamic(rope, numbers, positions_P), 1.0
    inv_freq_H, factor = KINDS[rope.kind][2](_plain(rope.dim, rope.theta), rope, numbers)
    return torch.outer(positions_P, inv_freq_H), factor


def _plain(dim: int, theta: float) -> Tensor:
    exponents: Tensor = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    return 1.0 / (theta**exponents)


def _default(inv_freq: Tensor, rope: Rope, numbers: dict[str, Any]) -> tuple[Tensor, float]:
    del rope, numbers
    return inv_freq, 1.0


def _linear(inv_freq: Tensor, rope: Rope, numbers: dict[str, Any]) -> tuple[Tensor, float]:
    """Position interpolation (Chen et al. 2023, arXiv 2306.15595)."""
    del rope
    return inv_freq / numbers["factor"], 1.0


def _factors(inv_freq: Tensor, rope: Rope, numbers: dict[str, Any]) -> tuple[Tensor, float]:
    """Divisors given one by one, as GGUF files carry llama3's."""
    del rope
    return inv_freq / torch.tensor(numbers["factors"], dtype=torch.float32), 1.0


def _dynamic(rope: Rope, numbers: dict[str, Any], positions_P: Tensor) -> Tensor:
    """NTK-aware scaling by length: one row of frequencies per position, [P, dim/2]."""
    context, factor = numbers["max_position_embeddings"], numbers["factor"]
    lengths_P = torch.clamp(positions_P + 1, min=context)
    theta_P = rope.theta * (factor * lengths_P / context - (factor - 1)) ** (rope.dim / (rope.dim - 2))
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    inv_freq_PH: Tensor = 1.0 / theta_P[:, None] ** exponents[None, :]
    return inv_freq_PH


def _llama3(inv_freq: Tensor, rope: Rope, numbers: dict[str, Any]) -> tuple[Tensor, float]:
    """Long waves are slowed by `factor`, short ones kept, those between blended (Llama 3.1)."""
    del rope
    factor, context = numbers["factor"], numbers["original_max_position_embeddings"]
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    wavelengths = 2 * math.pi / inv_freq
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * inv_freq / factor + blend * inv_freq
    slowed = torch.where(wavelengths > context / low, inv_freq / factor, inv_freq)
    between = (wavelengths >= context / high) & (wavelengths <= context / low)
    return torch.where(between, blended, slowed), 1.0


def _yarn(inv_freq: Tensor, rope: Rope, numbers: dict[str, Any]) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): interpolate slow pairs, keep fast ones, ramp between."""
    context = numbers["original_max_position_embeddings"]
    factor = numbers.get("factor") or numbers["max_position_embeddings"] / context

    def pair_with_periods(times: float) -> float:
        return rope.dim * math.log(context / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_with_periods(numbers.get("beta_fast") or 32), pair_with_periods(numbers.get("beta_slow") or 1)
    if numbers.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = (torch.arange(rope.dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    keep = 1 - torch.clamp(ramp, 0, 1)
    return inv_freq / factor * (1 - keep) + inv_freq * keep, _yarn_factor(numbers, factor)


def _yarn_factor(numbers: dict[str, Any], factor: float) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    given = numbers.get("attention_factor")
    if given is not None:
        return float(given)
    mscale, all_dim = numbers.get("mscale"), numbers.get("mscale_all_dim")
    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1.0)


Kind = tuple[tuple[str, ...], tuple[str, ...], Callable[[Tensor, Rope, dict[str, Any]], tuple[Tensor, float]]]
_YARN_OPTIONAL = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")

KINDS: dict[str, Kind] = {
    # name: (required numbers, optional numbers, function)
    "default": ((), (), _default),
    "linear": (("factor",), (), _linear),
    "factors": (("factors",), (), _factors),
    "dynamic": (("factor",), ("original_max_position_embeddings",), _default),  # see _angles
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), (), _llama3),
    "yarn": (("original_max_position_embeddings",), _YARN_OPTIONAL, _yarn),
}


def read_rope(
    reader: ConfigReader,
    head_dim: int,
    context: int,
    theta: float = 10000.0,
    theta_key: str = "rope_theta",
    partial_key: str = "partial_rotary_factor",
    partial: float = 1.0,
) -> Rope:
    """Rope from `rope_parameters` (transformers 5) or `rope_scaling` beside `rope_theta`; strict about both."""
    older, newer = reader.inside("rope_scaling"), reader.inside("rope_parameters")
    scaling = ValueReader({**older.values, **newer.values}, "config.json: rope parameters", CheckpointError)
    theta = _agreed(reader, theta_key, scaling, "rope_theta", 1.0, 1e30) or theta
    part = _agreed(reader, partial_key, scaling, "partial_rotary_factor", 0.0, 1.0) or partial
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in KINDS:
        raise CheckpointError(f"config.json: rope type {brief(kind)} is not implemented: use one of {', '.join(KINDS)}")
    required, optional, _ = KINDS[kind]
    numbers: dict[str, Any] = {}
    for key in (*required, *optional):
        missing = context if (kind, key) == ("yarn", "original_max_position_embeddings") else None
        value = _read_number(scaling, key, missing)
        if value is None and key in required:
            raise CheckpointError(f"config.json: rope type {kind!r} needs {key!r}, which is missing")
        if value is not None:
            numbers[key] = value
    for key, value in scaling.values.items():
        if key not in scaling.read and value is not None:
            raise CheckpointError(
                f"config.json: rope type {kind!r} has no parameter {brief(key)} (it is {brief(value)} there)"
            )
    if kind in ("dynamic", "yarn"):
        numbers["max_position_embeddings"] = context
    dim = int(head_dim * part)
    if dim < 2 or dim % 2 or dim > head_dim or (kind == "dynamic" and dim == 2):
        raise CheckpointError(f"config.json: {dim} rotary entries of head_dim {head_dim}: an even number is needed")
    if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        raise CheckpointError("config.json: low_freq_factor of rope type 'llama3' must be below its high_freq_factor")
    return Rope(dim, theta, kind, tuple(sorted(numbers.items())))


def _read_number(scaling: ValueReader, key: str, default: int | None) -> Any:
    """One parameter of a kind, by what it is: a length, a switch, a list of divisors, or a number."""
    if key == "original_max_position_embeddings":
        return scaling.count(key, default, maximum=MAX_POSITIONS)
    if key == "truncate":
        return None if scaling.take(key, None) is None else scaling.flag(key)
    if key == "factors":
        return tuple(scaling.entries(key, float)) if scaling.take(key, None) is not None else None
    return scaling.number(key, default, minimum=1e-6, maximum=1e6)


def _agreed(
    reader: ConfigReader, key: str, scaling: ValueReader, inner_key: str, minimum: float, maximum: float
) -> float | None:
    """A number that may stand inside the rope parameters, beside them, or in both places alike."""
    outer, inner = reader.number(key, None, minimum, maximum), scaling.number(inner_key, None, minimum, maximum)
    if None not in (inner, outer) and inner != outer:
        raise CheckpointError(f"config.json: {key} is {outer!r}, and {inner!r} in the rope parameters")
    return outer if inner is None else inner
