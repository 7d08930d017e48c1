"""The tensors of bitsandbytes, as rows of values. They are only read."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.bitsandbytes import Bitsandbytes

_STEP = 1 / 127  # multiplied with, as bitsandbytes does
_PART = 1 << 22  # codes at a time, so that temporaries stay small


def unpack(layout: Bitsandbytes, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of values."""
    if layout.kind == "int8":
        return Stored.plain(parts["weight"] * parts["SCB"].float()[:, None] * _STEP)
    table, factors = parts["weight.quant_map"].float(), _factors(layout, parts)
    codes = parts["weight"].contiguous().view(torch.uint8).flatten()
    num_rows, num_inputs = layout.shape
    values = torch.empty(2 * len(codes))
    for first in range(0, len(codes), _PART):
        some = codes[first : first + _PART]
        values[2 * first : 2 * (first + len(some))] = table[torch.stack((some >> 4, some & 15), 1).flatten().int()]
    values = values[: num_rows * num_inputs]
    whole = len(values) // layout.block * layout.block
    values[:whole].view(-1, layout.block).mul_(factors[: whole // layout.block, None])
    values[whole:].mul_(factors[-1:])
    return Stored.plain(values.view(num_rows, num_inputs))


def _factors(layout: Bitsandbytes, parts: Mapping[str, Tensor]) -> Tensor:
    """The factor of each block of codes, which may be codes of a table with factors of their own."""
    if not layout.nested_block:
        return parts["weight.absmax"].float()
    codes, table = parts["weight.absmax"].int(), parts["weight.nested_quant_map"].float()
    nested = parts["weight.nested_absmax"].float().repeat_interleave(layout.nested_block)[: len(codes)]
    return table[codes] * nested + layout.offset
