"""Codes in words of 32 bits, and codes on the groups of a layout, as the methods that store them have them."""

import torch
from torch import Tensor

from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored, joined_nibbles, split_nibbles
from tokenmill.weights.codes.layout import Layout


def of_groups(
    layout: Layout, bits: int, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor | None = None
) -> Stored:
    """See Stored.of_groups. In a layout a group of 0 is a whole row."""
    whole_row = -(-codes_RK.shape[1] // GROUP) * GROUP
    return Stored.of_groups(bits, codes_RK, layout.group or whole_row, scales_RG, minimums_RG)


def of_zeros(layout: Layout, codes_RK: Tensor, zeros_GR: Tensor, scales_GR: Tensor) -> Stored:
    """Make R rows of codes with a zero for each group. 8 bits with a zero other than 128 come with minimums, which no
    scheme keeps.
    """
    zeros_RG = (zeros_GR.t() + layout.zero_offset) & (1 << layout.bits) - 1
    scales_RG = scales_GR.float().t()
    plain = bool((zeros_RG == 1 << layout.bits - 1).all())
    return of_groups(layout, layout.bits, codes_RK, scales_RG, None if plain else -zeros_RG.float() * scales_RG)


def on_groups(layout: Layout, stored: Stored, num_inputs: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return codes [R, K], with the scales and minimums [R, G] of the layout's groups: the inverse of of_groups."""
    stored, step = stored.unpacked(), layout.group // GROUP
    assert stored.codes is not None and stored.scales is not None
    minimums_RG = None if stored.minimums is None else stored.minimums[:, ::step]
    return stored.codes[:, :num_inputs], stored.scales[:, ::step], minimums_RG


def fields_of(words_AB: Tensor, bits: int) -> Tensor:
    """Turn [A, B] int32 into [A, B, 32 / bits] uint8, from the low bits up."""
    bytes_ABC = words_AB.contiguous().view(torch.uint8).view(*words_AB.shape, 4)  # little-endian, as the file
    return bytes_ABC if bits == 8 else split_nibbles(bytes_ABC)


def words_of(fields_ABC: Tensor, bits: int) -> Tensor:
    """Invert fields_of."""
    bytes_ABC = fields_ABC if bits == 8 else joined_nibbles(fields_ABC)
    return bytes_ABC.contiguous().view(torch.int32).squeeze(-1)
