"""Codes in words of 32 bits, and codes in the groups of a layout, as several methods store them."""

import torch
from torch import Tensor

from tokenmill.quant.nibbles import joined_nibbles, split_nibbles
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.layout import Layout, odd_group


def of_groups(
    layout: Layout, bits: int, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor | None = None
) -> Stored:
    """Make rows of codes, see Stored.of_groups. In a layout a group of 0 is a whole row."""
    inputs = codes_RK.shape[1]
    whole_row = -(-inputs // GROUP) * GROUP
    group = layout.group if 0 < layout.group < inputs else whole_row
    return Stored.of_groups(bits, codes_RK, group, scales_RG, minimums_RG)


def of_zeros(
    layout: Layout, codes_RK: Tensor, zeros_GR: Tensor, scales_GR: Tensor, groups_K: Tensor | None = None
) -> Stored:
    """Make R rows of codes with a zero for each group, as they are stored. groups_K: see of_integers."""
    zeros_RG = (zeros_GR.t() + layout.zero_offset) & (1 << layout.bits) - 1
    return of_integers(layout, codes_RK, zeros_RG, scales_GR.float().t(), groups_K)


def of_integers(
    layout: Layout, codes_RK: Tensor, zeros_RG: Tensor, scales_RG: Tensor, groups_K: Tensor | None = None
) -> Stored:
    """Make rows (code - zero) · scale, whose codes have up to 8 bits.

    Codes of up to 3 bits become 4 bits with the zero 8, codes of 5 to 7 bits become 8 bits with the zero 128: both hold
    any difference. Codes of 8 bits get that zero if no difference is too large; else they come with minimums, which no
    scheme keeps. groups_K: the group of each input, where the inputs of a group are no neighbours; then the rows come
    as values, as they do where a group is no multiple of 32.
    """
    bits, num_inputs = layout.bits, codes_RK.shape[1]
    if groups_K is None and odd_group(layout.group, num_inputs):
        groups_K = torch.arange(num_inputs) // layout.group
    if groups_K is not None:
        groups_K = groups_K.long()
        return Stored.plain((codes_RK.float() - zeros_RG.float()[:, groups_K]) * scales_RG[:, groups_K])
    middle = 1 << bits - 1
    is_plain = bool((zeros_RG == middle).all())
    if bits == 4 or (bits == 8 and is_plain):
        return of_groups(layout, bits, codes_RK, scales_RG, None if is_plain else -zeros_RG.float() * scales_RG)
    kept = 4 if bits < 4 else 8
    each = layout.group if 0 < layout.group < num_inputs else num_inputs
    zeros_RK = zeros_RG.to(torch.int16).repeat_interleave(each, 1)[:, :num_inputs]
    moved_RK = codes_RK.to(torch.int16).sub_(zeros_RK).add_(1 << kept - 1)
    if bits == 8 and bool(((moved_RK < 0) | (moved_RK > 255)).any()):
        return of_groups(layout, 8, codes_RK, scales_RG, -zeros_RG.float() * scales_RG)
    return of_groups(layout, kept, moved_RK.to(torch.uint8), scales_RG)


def of_minimums(layout: Layout, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor) -> Stored:
    """Make rows code · scale + minimum: as 4 bits if the codes have no more, else as values."""
    num_inputs = codes_RK.shape[1]
    if layout.bits <= 4 and not odd_group(layout.group, num_inputs):
        return of_groups(layout, 4, codes_RK, scales_RG.float(), minimums_RG.float())
    groups_K = torch.arange(num_inputs) // (layout.group or num_inputs)
    return Stored.plain(codes_RK.float() * scales_RG.float()[:, groups_K] + minimums_RG.float()[:, groups_K])


def values_in_groups(numbers_RK: Tensor, scales_RG: Tensor, group: int) -> Stored:
    """Make R rows of numbers times a scale for each group of inputs."""
    return Stored.plain(numbers_RK * scales_RG.repeat_interleave(group, 1)[:, : numbers_RK.shape[1]])


def on_groups(layout: Layout, stored: Stored, num_inputs: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return codes [R, K], with the scales and minimums [R, G] of the layout's groups: the inverse of of_groups."""
    stored, step = stored.unpacked(), layout.group // GROUP
    assert stored.codes is not None and stored.scales is not None
    minimums_RG = None if stored.minimums is None else stored.minimums[:, ::step]
    return stored.codes[:, :num_inputs], stored.scales[:, ::step], minimums_RG


def stream_of(words_AB: Tensor, bits: int) -> Tensor:
    """Turn [A, B] words into the [A, B * 32 / bits] uint8 codes that lie in them one after the other, from the low
    bits up; a code may begin in one word and end in the next.
    """
    bytes_AC = words_AB.contiguous().view(torch.uint8).view(len(words_AB), -1)  # little-endian, as the file
    if bits == 8:
        return bytes_AC
    if bits == 4:
        return split_nibbles(bytes_AC)
    num_codes = bytes_AC.shape[1] * 8 // bits
    missing = -bytes_AC.shape[1] % bits
    parts_ANB = torch.nn.functional.pad(bytes_AC, (0, missing)).view(len(bytes_AC), -1, bits)  # of eight codes each
    sums_AN = sum((parts_ANB[..., i].long() << 8 * i for i in range(bits)), torch.zeros((), dtype=torch.long))
    codes_AN8 = [(sums_AN >> bits * i & (1 << bits) - 1).to(torch.uint8) for i in range(8)]
    return torch.stack(codes_AN8, -1).flatten(1)[:, :num_codes]


def words_of(codes_AB: Tensor, bits: int) -> Tensor:
    """Put codes of 4 or 8 bits into words: the inverse of stream_of."""
    bytes_AC = codes_AB if bits == 8 else joined_nibbles(codes_AB)
    return bytes_AC.flatten().view(torch.int32).view(len(bytes_AC), -1)
