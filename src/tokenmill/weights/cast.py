"""Numbers in another floating type: what it cannot hold is refused, and never becomes infinite without a word."""

import torch
from torch import Tensor

from tokenmill.errors import NumberTooLarge

LARGEST = torch.finfo(torch.float16).max


def cast(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Give a tensor of that name in another floating type; NumberTooLarge where that has no such numbers."""
    check_range(name, values, dtype)
    return values.to(dtype)


def check_range(name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Refuse numbers for float16 that it does not hold. The other types hold all, as far as models have them."""
    if dtype == torch.float16 and values.dtype != dtype and values.numel():
        low, high = (number.item() for number in values.aminmax())
        if max(-low, high) > LARGEST:
            largest = f"{max(-low, high):g}, and float16 holds numbers up to {LARGEST:g}"
            raise NumberTooLarge(f"{name} holds {largest}: give dtype bfloat16 or float32")
