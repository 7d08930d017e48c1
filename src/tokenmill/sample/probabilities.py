"""Integer probabilities, and the draw, which is computed from them; log-probabilities (logprobs.py) are, too.

A sum of floats depends on its order, and the order on batch size, alignment and device. Sums of integers do not, so the
result of a row is the same bits alone or among others, whatever filters are applied to the other rows. The likeliest
token has the integer probability 2**(62 - bits of V), so that every sum fits into 63 bits. The others are rounded down,
which takes from each less than 2**-46 of the likeliest token's probability at V = 49152 (2**-44 at V = 2**17), far
below the resolution of float32 logits. The largest logit of a row must be finite.
"""

import torch
from torch import Tensor


def integer_probabilities(logits_RV: Tensor) -> Tensor:
    """Compute the unnormalised softmax as int64 [R, V]; 0 for -inf."""
    largest_R1 = logits_RV.amax(dim=-1, keepdim=True).double()
    return (logits_RV.double() - largest_R1).exp_().mul_(weight_of_largest(logits_RV)).to(torch.int64)


def draw(logits_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Draw by the inverse CDF in vocabulary order: the first id whose cumulative integer probability reaches uniform ·
    total.

    uniform_R: float64 in (0, 1). Tokens of probability 0 are never drawn.
    """
    cumulative_RV = integer_probabilities(logits_RV).cumsum(dim=-1)
    total_R1 = cumulative_RV[:, -1:]
    # The product is above 0, so the target is 1 or more and a token of probability 0 cannot match; rounded to
    # float64 it may come out above the total.
    target_R1 = (uniform_R[:, None] * total_R1).ceil().to(torch.int64).minimum(total_R1)
    return torch.searchsorted(cumulative_RV, target_R1).squeeze(-1)


def weight_of_largest(logits_RV: Tensor) -> float:
    """Compute the integer probability of the likeliest token."""
    return 2.0 ** (62 - logits_RV.shape[-1].bit_length())
