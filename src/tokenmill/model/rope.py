"""Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), as a table of cosines and sines by position.

A head's first `dim` entries are paired (i, i + dim/2) and each pair is rotated by position · inv_freq[i]. The kinds
differ only in inv_freq and in a factor on the result. The table is made once, so a token's angle is a function of its
position alone. For "dynamic" (NTK) that means: beyond the trained context each position is rotated by the base that
fits its own length, as transformers computes it when it decodes with a cache; the length of the prompt cannot matter.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader, Rope
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief

__all__ = [
    "KINDS",
    "Angles",
    "RotaryTable",
    "apply_rotary",
    "apply_rotary_in_halves",
    "frequencies",
    "read_rope",
    "yarn_attention_factor",
]

log = logging.getLogger(__name__)

Angles = tuple[Tensor, Tensor]  # cos and sin for each token of a step, [T, 1, dim] each


class RotaryTable(nn.Module):
    """cos and sin of shape [P, dim], for every position that the engine may use."""

    cos_PH: Tensor
    sin_PH: Tensor

    def __init__(self, rope: Rope, num_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        angles_PH = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies(rope, num_positions)
        angles_PH = torch.cat((angles_PH, angles_PH), dim=-1)
        factor = dict(rope.scaling).get("attention_factor", 1.0)
        self.register_buffer("cos_PH", (angles_PH.cos() * factor).to(device, dtype), persistent=False)
        self.register_buffer("sin_PH", (angles_PH.sin() * factor).to(device, dtype), persistent=False)

    def forward(self, positions_T: Tensor) -> Angles:
        return self.cos_PH[positions_T].unsqueeze(1), self.sin_PH[positions_T].unsqueeze(1)


def frequencies(rope: Rope, num_positions: int = 1) -> Tensor:
    """The angle of each pair per position, [dim/2]; for "dynamic" a row for each position, [P, dim/2]."""
    numbers = {"dim": rope.dim, "theta": rope.theta, "num_positions": num_positions, **dict(rope.scaling)}
    exponents: Tensor = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    _, _, scale = KINDS[rope.kind]
    found: Tensor = scale(1.0 / (rope.theta**exponents), numbers)
    return found


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


def _dynamic(_: Tensor, numbers: dict[str, Any]) -> Tensor:
    """NTK-aware scaling by length: one row of frequencies per position, [P, dim/2]."""
    context, factor, dim = numbers["max_position_embeddings"], numbers["factor"], numbers["dim"]
    lengths_P = torch.clamp(torch.arange(numbers["num_positions"], dtype=torch.float32) + 1, min=context)
    theta_P = numbers["theta"] * (factor * lengths_P / context - (factor - 1)) ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    inv_freq_PH: Tensor = 1.0 / theta_P[:, None] ** exponents
    return inv_freq_PH


def _llama3(inv_freq: Tensor, numbers: dict[str, Any]) -> Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between blended (Llama 3.1)."""
    factor, context = numbers["factor"], numbers["original_max_position_embeddings"]
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    wavelengths = 2 * math.pi / inv_freq
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * inv_freq / factor + blend * inv_freq
    slowed = torch.where(wavelengths > context / low, inv_freq / factor, inv_freq)
    between = (wavelengths >= context / high) & (wavelengths <= context / low)
    return torch.where(between, blended, slowed)


def _yarn(inv_freq: Tensor, numbers: dict[str, Any]) -> Tensor:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): interpolate slow pairs, keep fast ones, ramp between."""
    context, dim = numbers["original_max_position_embeddings"], numbers["dim"]
    periods = (numbers["beta_fast"], numbers["beta_slow"])
    low, high = (dim * math.log(context / (n * 2 * math.pi)) / (2 * math.log(numbers["theta"])) for n in periods)
    if numbers.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = (torch.arange(dim // 2, dtype=torch.float32) - low) / ((high - low) or 0.001)
    keep = 1 - torch.clamp(ramp, 0, 1)
    scaled: Tensor = inv_freq / numbers["factor"] * (1 - keep) + inv_freq * keep
    return scaled


def yarn_attention_factor(stretch: float, weight: float = 1.0) -> float:
    """What YaRN multiplies cosines and sines by where a config gives no other value."""
    return 1.0 if stretch <= 1 else 0.1 * weight * math.log(stretch) + 1.0


# Of other programs' YaRN, by kind; transformers warns and reads none. DeepSeek's attn_factor multiplies the usual one.
_UNUSED = {"yarn": ("attn_factor", "finetuned", "extrapolation_factor")}
_YARN_OPTIONAL = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")

KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Tensor, dict[str, Any]], Tensor]]] = {
    # name: (required numbers, optional numbers, function of plain inv_freq and all numbers)
    "default": ((), (), lambda inv_freq, _: inv_freq),
    # Position interpolation (Chen et al. 2023, arXiv 2306.15595).
    "linear": (("factor",), (), lambda inv_freq, numbers: inv_freq / numbers["factor"]),
    # Divisors given one by one, as GGUF files carry llama3's.
    "factors": (("factors",), (), lambda inv_freq, numbers: inv_freq / torch.tensor(numbers["factors"])),
    "dynamic": (("factor",), ("original_max_position_embeddings",), _dynamic),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), (), _llama3),
    "yarn": (("original_max_position_embeddings",), _YARN_OPTIONAL, _yarn),
}


def read_rope(reader: ConfigReader, head_dim: int, context: int) -> Rope:
    """Rope from `rope_parameters` (transformers 5) or `rope_scaling` beside `rope_theta`; strict about both."""
    older, newer = reader.inside("rope_scaling"), reader.inside("rope_parameters")
    outer_length = reader.take("original_max_position_embeddings", None)  # which goes first, as in transformers
    outer = {} if outer_length is None else {"original_max_position_embeddings": outer_length}
    chosen = older.values or newer.values  # transformers takes one of the two, and never a mixture
    scaling = ValueReader(chosen, "config.json: rope parameters", CheckpointError)
    if outer and scaling.take("rope_type", scaling.take("type", None)) in ("llama3", "yarn"):
        scaling.values = {**chosen, **outer}
    theta = _agreed(reader, scaling, "rope_theta", 1.0, 1e30)
    part = _agreed(reader, scaling, "partial_rotary_factor", 0.0, 1.0)
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if kind not in KINDS:
        raise CheckpointError(f"config.json: rope type {brief(kind)} is not implemented: only {', '.join(KINDS)}")
    required, optional, _ = KINDS[kind]
    numbers: dict[str, Any] = {}
    for key in (*required, *optional):
        missing = context if kind != "dynamic" and key == "original_max_position_embeddings" else None
        value = _read_number(scaling, key, missing)
        if value is None and key in required:
            raise CheckpointError(f"config.json: rope type {kind!r} needs {key!r}, which is missing")
        if value is not None:
            numbers[key] = value
    unused = {key: value for key in _UNUSED.get(kind, ()) if (value := scaling.take(key, None)) is not None}
    if unused:
        log.warning("config.json: %s of rope type %r has no effect, as in transformers", brief(unused), kind)
    for key, value in scaling.values.items():
        if key not in scaling.read and value is not None:
            raise CheckpointError(
                f"config.json: rope type {kind!r} has no parameter {brief(key)} (it is {brief(value)})"
            )
    if kind == "dynamic":
        numbers["max_position_embeddings"] = context
    if kind == "yarn":
        numbers = _resolve_yarn(numbers, context)
    dim = int(head_dim * part)
    if dim < 2 or dim % 2 or dim > head_dim or (kind == "dynamic" and dim == 2):
        raise CheckpointError(f"config.json: {dim} rotary entries of head_dim {head_dim}: an even number is needed")
    if kind == "llama3" and numbers["low_freq_factor"] >= numbers["high_freq_factor"]:
        raise CheckpointError("config.json: low_freq_factor of rope type 'llama3' must be below its high_freq_factor")
    return Rope(dim, theta, kind, tuple(sorted(numbers.items())))


def _resolve_yarn(numbers: dict[str, Any], context: int) -> dict[str, Any]:
    """The numbers of YaRN as they count, whatever they were computed from."""
    stretch = numbers.get("factor") or context / numbers["original_max_position_embeddings"]
    mscale, all_dim, factor = (numbers.get(key) for key in ("mscale", "mscale_all_dim", "attention_factor"))
    if factor is None and mscale and all_dim:
        factor = yarn_attention_factor(stretch, mscale) / yarn_attention_factor(stretch, all_dim)
    kept = {key: value for key, value in numbers.items() if not key.startswith("mscale")}
    kept = {"beta_fast": 32.0, "beta_slow": 1.0} | kept
    return kept | {"factor": stretch, "attention_factor": yarn_attention_factor(stretch) if factor is None else factor}


def _read_number(scaling: ValueReader, key: str, default: int | None) -> Any:
    """One parameter of a kind, by what it is: a length, a switch, a list of divisors, or a number."""
    if scaling.take(key, default) is None:
        return None
    if key == "original_max_position_embeddings":
        return scaling.count(key, default, maximum=MAX_POSITIONS)
    if key == "truncate":
        return scaling.flag(key)
    return tuple(scaling.entries(key, float)) if key == "factors" else scaling.number(key, None, 1e-6, 1e6)


def _agreed(reader: ConfigReader, scaling: ValueReader, key: str, minimum: float, maximum: float) -> float:
    """A number that may stand inside the rope parameters, beside them, in both places alike, or in neither."""
    outer, inner = (each.number(key, None, minimum, maximum) for each in (reader, scaling))
    if None not in (inner, outer) and inner != outer:
        raise CheckpointError(f"config.json: {reader.name(key)} is {outer!r}, and {inner!r} in the rope parameters")
    given: float | None = outer if inner is None else inner
    return reader.defaults[key] if given is None else given
