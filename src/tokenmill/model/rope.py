"""Rotary position embeddings of every kind (Su et al. 2021, arXiv 2104.09864), as a table of cosines and sines by
position.

A head's first `dim` entries are paired (i, i + dim/2) and each pair is rotated by position · inv_freq[i]. The kinds
differ only in inv_freq and in a factor on the result. The table is made once, so a token's angle is a function of its
position alone. For "dynamic" (NTK) that means: beyond the trained context each position is rotated by the base that
fits its own length, as transformers computes it when it decodes with a cache; the length of the prompt cannot matter.
"longrope" (Phi-3) has two lists of divisors, for texts up to the trained length and for longer ones. The table has the
long list exactly where it has more positions than the trained length, so that the list is chosen once, by the engine's
max_length. transformers changes the list when a text passes that length, and then computes its whole cache again.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tokenmill.model.config import Rope

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
    """Compute the angle of each pair per position, [dim/2]; for "dynamic" a row for each position, [P, dim/2]."""
    numbers = {"dim": rope.dim, "theta": rope.theta, "num_positions": num_positions, **dict(rope.scaling)}
    numbers["is_long"] = rope.is_long(num_positions)
    exponents: Tensor = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    return SCALES[rope.kind](1.0 / (rope.theta**exponents), numbers)


def apply_rotary(x_TNH: Tensor, cos_T1H: Tensor, sin_T1H: Tensor) -> Tensor:
    """Rotate the leading entries of every head, as many as the table is wide; the others are unchanged."""
    dim = cos_T1H.shape[-1]
    rotated = x_TNH if dim == x_TNH.shape[-1] else x_TNH[..., :dim]
    half = dim // 2
    swapped = torch.cat((-rotated[..., half:], rotated[..., :half]), dim=-1)
    rotated = rotated * cos_T1H + swapped * sin_T1H
    return rotated if dim == x_TNH.shape[-1] else torch.cat((rotated, x_TNH[..., dim:]), dim=-1)


def apply_rotary_in_halves(x_TNH: Tensor, cos_T1H: Tensor, sin_T1H: Tensor) -> Tensor:
    """Rotate as apply_rotary does, bit for bit, without a swapped copy."""
    dim = cos_T1H.shape[-1]
    half = dim // 2
    rotated = x_TNH[..., :dim] * cos_T1H
    rotated[..., :half] -= x_TNH[..., half:dim] * sin_T1H[..., :half]
    rotated[..., half:] += x_TNH[..., :half] * sin_T1H[..., half:]
    return rotated if dim == x_TNH.shape[-1] else torch.cat((rotated, x_TNH[..., dim:]), dim=-1)


def _dynamic(_: Tensor, numbers: dict[str, Any]) -> Tensor:
    """Scale by length (NTK-aware): one row of frequencies per position, [P, dim/2]."""
    context, factor, dim = numbers["max_position_embeddings"], numbers["factor"], numbers["dim"]
    lengths_P = torch.clamp(torch.arange(numbers["num_positions"], dtype=torch.float32) + 1, min=context)
    theta_P = numbers["theta"] * (factor * lengths_P / context - (factor - 1)) ** (dim / (dim - 2))
    exponents = torch.arange(0, dim, 2, dtype=torch.int64).float() / dim
    inv_freq_PH: Tensor = 1.0 / theta_P[:, None] ** exponents
    return inv_freq_PH


def _llama3(inv_freq: Tensor, numbers: dict[str, Any]) -> Tensor:
    """Slow long waves by `factor`, keep short ones, and blend the waves between them (Llama 3.1)."""
    factor, context = numbers["factor"], numbers["original_max_position_embeddings"]
    low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
    wavelengths = 2 * math.pi / inv_freq
    blend = (context / wavelengths - low) / (high - low)
    blended = (1 - blend) * inv_freq / factor + blend * inv_freq
    slowed = torch.where(wavelengths > context / low, inv_freq / factor, inv_freq)
    between = (wavelengths >= context / high) & (wavelengths <= context / low)
    return torch.where(between, blended, slowed)


def _yarn(inv_freq: Tensor, numbers: dict[str, Any]) -> Tensor:
    """Interpolate slow pairs, keep fast ones, ramp between: YaRN (Peng et al. 2023, arXiv 2309.00071)."""
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


def _proportional(inv_freq: Tensor, numbers: dict[str, Any]) -> Tensor:
    """Turn the first pairs as in a head that turns whole; the others stay (Gemma 4)."""
    kept = int(numbers["partial_rotary_factor"] * numbers["dim"] // 2)
    return torch.cat((inv_freq[:kept] / numbers.get("factor", 1.0), torch.zeros(len(inv_freq) - kept)))


def _longrope(_: Tensor, numbers: dict[str, Any]) -> Tensor:
    """Divide each pair's frequency by a number of one of two lists: LongRoPE (Ding et al. 2024, arXiv 2402.13753)."""
    divisors = torch.tensor(numbers["long_factor" if numbers["is_long"] else "short_factor"])
    exponents = torch.arange(0, numbers["dim"], 2, dtype=torch.int64).float() / numbers["dim"]
    inv_freq: Tensor = 1.0 / (divisors * numbers["theta"] ** exponents)
    return inv_freq


SCALES: dict[str, Callable[[Tensor, dict[str, Any]], Tensor]] = {
    # kind: (the plain inv_freq, all numbers) → the scaled inv_freq
    "default": lambda inv_freq, _: inv_freq,
    # Position interpolation (Chen et al. 2023, arXiv 2306.15595).
    "linear": lambda inv_freq, numbers: inv_freq / numbers["factor"],
    # Divisors given one by one, as GGUF files carry llama3's.
    "factors": lambda inv_freq, numbers: inv_freq / torch.tensor(numbers["factors"]),
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "proportional": _proportional,
}
