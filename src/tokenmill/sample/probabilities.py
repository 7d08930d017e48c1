"""Probabilities as whole numbers, and what is computed from them: the draw and the log-probabilities.

A sum of floats depends on its order, and the order on batch size, alignment and device. Sums of integers do not, so a
row's result is the same bits alone, among others, and after any other row was narrowed further. The likeliest token
has mass 2**(62 - bits of V): every sum fits 63 bits. Each mass is cut down to a whole number, which takes from each
token less than 2**-46 of the likeliest one's probability at V = 49152 (2**-44 at V = 2**17), far under what float32
logits can express. Nothing here knows of settings or sequences. Rows need a finite largest logit.
"""

import torch
from torch import Tensor

__all__ = ["draw", "log_probability", "mass"]


def mass(logits_RV: Tensor) -> Tensor:
    """Unnormalised softmax as int64 [R, V]; 0 for -inf."""
    largest_R1 = logits_RV.amax(dim=-1, keepdim=True).double()
    return (logits_RV.double() - largest_R1).exp_().mul_(_largest_mass(logits_RV)).to(torch.int64)


def draw(logits_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Inverse CDF in vocabulary order: the first id whose cumulative mass reaches uniform · total.

    uniform_R: float64 in (0, 1). Tokens without mass are never drawn.
    """
    cumulative_RV = mass(logits_RV).cumsum(dim=-1)
    total_R1 = cumulative_RV[:, -1:]
    # The product is above 0, so the target is 1 or more and a token without mass cannot match; rounded to float64 it
    # may come out above the total.
    target_R1 = (uniform_R[:, None] * total_R1).ceil().to(torch.int64).minimum(total_R1)
    return torch.searchsorted(cumulative_RV, target_R1).squeeze(-1)


def log_probability(logits_RV: Tensor) -> Tensor:
    """log_softmax in float32, the same bits in any batch."""
    largest_R1 = logits_RV.amax(dim=-1, keepdim=True).double()
    total_R1 = mass(logits_RV).sum(dim=-1, keepdim=True).double() / _largest_mass(logits_RV)
    return (logits_RV.double() - largest_R1 - total_R1.log()).float()


def _largest_mass(logits_RV: Tensor) -> float:
    return 2.0 ** (62 - logits_RV.shape[-1].bit_length())
