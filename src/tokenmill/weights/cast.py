"""Numbers in another floating type: a number that the type cannot hold is refused, and never becomes infinite."""

import torch
from torch import Tensor

from tokenmill.errors import NumberTooLarge

LARGEST = torch.finfo(torch.float16).max


def cast(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast a tensor of that name to another floating type; NumberTooLarge where the type has no such numbers."""
    check_range(name, values, dtype)
    return values.to(dtype)


def check_range(name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Refuse numbers that float16 does not hold. The other types hold all numbers that models have."""
    if dtype == torch.float16 and values.dtype != dtype and values.numel():
        low, high = (number.item() for number in values.aminmax())
        if max(-low, high) > LARGEST:
            largest = f"{max(-low, high):g}, and float16 holds numbers up to {LARGEST:g}"
            raise NumberTooLarge(f"{name} holds {largest}: give dtype bfloat16 or float32")
