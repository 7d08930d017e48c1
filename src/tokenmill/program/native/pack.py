"""Matrices in the layouts of the native program: tiles of 16 rows, interleaved so that one load feeds one dot product.

Within a tile, K runs on in steps of 64 inputs, padded with zeros: float32 and float16 [k][16 rows], bfloat16 [k / 2][16
rows][2]. Integer layouts have, for each 64 inputs, a header with the scales of both groups of 32 (and their minimums),
then the codes: 8 bits as [8][16 rows][4 inputs] for each group; 4 bits as [4][16 rows][4 inputs], where a byte's low
half belongs to inputs 0 to 15 of the group and its high half to inputs 16 to 31. Codes of 5 and 6 bits have their high
bits first, [1 or 2][16 rows][4 inputs], then the low four bits in the layout of 4 bits. With 5 bits, bit i of a high
byte belongs to the low half of byte i, and bit 4 + i to its high half; with 6 bits, the two bits from 2 i and from 4 +
2 i on do. With 6 bits the header ends with the factors, one byte for each half of both groups, [4][16 rows]. Integer
scales are half floats, [scale, minimum][16 rows], then bytes, [2 groups][scale, minimum][16 rows]. In superblocks a
head of 64 bytes has the half floats of 256 inputs (with 6 bits the scales, twice), and their four headers have the
bytes alone.
"""

import torch
from torch import Tensor

from tokenmill.program.native.layouts import INTEGER, LAYOUTS, PAD, SUPER, SUPERBLOCKS, TILE, WIDE
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored
from tokenmill.settings.engine_config import DTYPES

HEAD = 64  # bytes, see above
_FLOATS = {LAYOUTS[name]: getattr(torch, name) for name in DTYPES}


def layout_of(stored: Stored) -> int:
    """Find the layout that holds these rows without rounding them."""
    if stored.numbers is not None:
        return next(layout for layout, dtype in _FLOATS.items() if dtype == stored.numbers.dtype)
    return LAYOUTS[_layout_of_codes(stored)]


def _layout_of_codes(stored: Stored) -> str:
    assert stored.scales is not None
    assert stored.minimums is None or stored.bits < 8, "codes of 8 bits have no minimums"
    parts = [part for part in (stored.scales, stored.minimums) if part is not None]
    if stored.factors is not None:
        return f"6 bits in {'superblocks' if _in_superblocks(stored.scales) else 'halves'}"
    if not all(torch.equal(part.half().float(), part) for part in parts):
        steps = None if stored.steps is None else stored.steps.view(torch.int32)
        if steps is not None and _in_superblocks(steps):
            return f"{stored.bits} bits in superblocks"
        return f"{stored.bits} bits with {'integer' if steps is not None and _in_pairs(steps) else 'wide'} scales"
    if stored.minimums is None:
        return f"{stored.bits} bits"
    in_pairs = stored.bits == 4 and all(map(_in_pairs, parts))
    return "4 bits in pairs" if in_pairs else f"{stored.bits} bits with minimums"


def pack(stored: Stored, rows: Tensor, layout: int, num_inputs: int, out: Tensor) -> None:
    """Write the given rows, a multiple of 16, as tiles into `out` [units, unit bytes] uint8; -1 is a row of zeros."""
    width = -(-num_inputs // PAD) * PAD
    if number := _FLOATS.get(layout):
        assert stored.numbers is not None
        beside = 2 if number == torch.bfloat16 else 1
        tiles = _take(stored.numbers.to(number), rows, width).view(len(out), -1, TILE, width // beside, beside)
        out.view(number).view(*tiles.transpose(2, 3).shape).copy_(tiles.transpose(2, 3))
        return
    headers, fours = _headers(stored, rows, layout, width), _fours(stored, rows, layout, width)
    head, together = (HEAD, SUPER // PAD) if layout in SUPERBLOCKS else (0, width // PAD)  # bytes before so many blocks
    begin, num_tiles = headers.shape[2] - head, len(rows) // TILE // len(out)
    begins, codes = (each.view(len(out), num_tiles, -1, together, *each.shape[2:]) for each in (headers, fours))
    stretches = out.view(*begins.shape[:3], -1)
    stretches[..., :head].copy_(begins[..., 0, :head])
    blocks = stretches[..., head:].view(*begins.shape[:4], -1)
    blocks[..., :begin].copy_(begins[..., head:])
    blocks[..., begin:].view(torch.int32).view(codes.shape).copy_(codes)


def _headers(stored: Stored, rows: Tensor, layout: int, width: int) -> Tensor:
    """Make the headers, [tiles, pairs, bytes]: scales, and minimums or factors if there are any."""
    assert stored.scales is not None
    if layout in INTEGER:
        return _integer_headers(stored, rows, width)
    wide, pairs = layout in WIDE, layout == LAYOUTS["4 bits in pairs"]
    minimums = -8 * stored.scales if wide and stored.bits == 4 and stored.minimums is None else stored.minimums
    found = [_header(part, rows, width, wide, pairs) for part in (stored.scales, minimums) if part is not None]
    if stored.factors is not None:
        taken = _take(stored.factors, rows, width // 16).view(-1, TILE, width // PAD, PAD // 16)
        found.append(taken.permute(0, 2, 3, 1).contiguous().flatten(2).view(torch.uint8))
    return torch.cat(found, dim=2)


def _integer_headers(stored: Stored, rows: Tensor, width: int) -> Tensor:
    """Make headers of scales and minimums that are integers times half floats; a minimum is at most zero."""
    assert stored.scales is not None and stored.minimums is not None and stored.steps is not None
    numbers = torch.stack((stored.scales, stored.minimums), -1).flatten(1)
    signed = stored.steps * torch.tensor([1, -1]).to(stored.steps).repeat(stored.scales.shape[1])
    integers = torch.where(signed == 0, 0, torch.round(numbers / signed.float())).to(torch.int8)
    pairs, unit = width // PAD, (-1, TILE, width // PAD, 2, 2)  # tiles, rows, pairs, groups, scale and minimum
    steps = _take(signed, rows, 4 * pairs).view(unit)[:, :, :, 0].permute(0, 2, 3, 1).contiguous()
    factors = _take(integers, rows, 4 * pairs).view(unit).permute(0, 2, 3, 4, 1).contiguous()
    return torch.cat([steps.flatten(2).view(torch.uint8), factors.flatten(2).view(torch.uint8)], dim=2)


def _fours(stored: Stored, rows: Tensor, layout: int, width: int) -> Tensor:
    """Make codes as int32 [tiles, pairs, groups, quads, rows]: four of 8 bits, eight of 4 bits, or high bits."""
    has_bytes = stored.bits == 8 or stored.halves is None
    codes, size = (stored.unpacked().codes, GROUP) if has_bytes else (stored.halves, GROUP // 2)
    assert codes is not None
    taken = _take(codes, rows, width // GROUP * size)
    fours = taken.view(torch.int32).view(-1, TILE, width // PAD, PAD // GROUP, size // 4)
    if stored.bits in (5, 6):
        fours = _with_high_bits(fours, stored.bits)
    elif has_bytes and stored.bits == 4:
        fours = fours[..., :4] | fours[..., 4:] << 4
    return fours.permute(0, 2, 3, 4, 1)


def _with_high_bits(fours: Tensor, bits: int) -> Tensor:
    """Rearrange codes in bytes, […, 8 quads], as […, 5 or 6]: the high bits of all, then the low four."""
    low, high = fours & 0x0F0F0F0F, fours >> 4 & 0x03030303
    lines, count = bits - 4, 4 // (bits - 4)  # quads of each half whose high bits are in one line
    of_halves = high[..., :4] | high[..., 4:] << 4
    quads = of_halves.reshape(*high.shape[:-1], lines, count) << torch.arange(0, 4, bits - 4)
    return torch.cat([quads.sum(-1, dtype=torch.int32), low[..., :4] | low[..., 4:] << 4], -1)


def _in_pairs(numbers: Tensor) -> bool:
    """Say whether in [R, groups] each even group has the value of the next one; a last odd group is ignored."""
    even = numbers.shape[1] // 2 * 2
    return bool(torch.equal(numbers[:, 0:even:2], numbers[:, 1:even:2]))


def _in_superblocks(numbers: Tensor) -> bool:
    """Say whether [R, groups] are whole superblocks, in each of which the groups of a row have one value."""
    size = SUPER // GROUP
    if numbers.shape[1] % size:
        return False
    blocks = numbers.reshape(len(numbers), -1, size)
    return torch.equal(blocks, blocks[..., :1].expand_as(blocks))


def _header(numbers: Tensor, rows: Tensor, width: int, wide: bool, pairs: bool) -> Tensor:
    """Make a part of the headers, [tiles, pairs, bytes]: 16 values of each group, or 16 for both groups of a pair."""
    taken = _take(numbers, rows, width // GROUP).view(-1, TILE, width // PAD, PAD // GROUP)
    numbers = taken[..., : 1 if pairs else 2].permute(0, 2, 3, 1).contiguous()
    return (numbers if wide else numbers.half()).flatten(2).view(torch.uint8)


def _take(matrix: Tensor, rows: Tensor, width: int) -> Tensor:
    """Take these rows, with zeros for -1 and up to `width`; without a copy where they lie in that order already."""
    first, count = int(rows[0]), len(rows)
    if width == matrix.shape[1] and first >= 0 and torch.equal(rows, torch.arange(first, first + count)):
        return matrix[first : first + count].contiguous()
    taken = matrix.new_zeros(len(rows), width)
    real = rows >= 0
    taken[real, : matrix.shape[1]] = matrix[rows[real]]
    return taken
