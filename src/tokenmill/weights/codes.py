"""The codes of quantised directories, read and made; quantized.py says how each method stores them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.schemes import GROUP
from tokenmill.quant.stored import Stored, joined_nibbles, split_nibbles
from tokenmill.weights.quantized import Layout, QuantizedCheckpoint

__all__ = ["CodesReader", "pack", "unpack"]

_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # where the codes of columns 0, 1, … lie among the eight of a word


class CodesReader:
    """Reads the tensors of a QuantizedCheckpoint."""

    def __init__(self, checkpoint: QuantizedCheckpoint) -> None:
        self._checkpoint = checkpoint

    def read(self, name: str, dtype: torch.dtype | None) -> Tensor:
        """See Checkpoint."""
        stored = self._unpack(name)
        if stored is None:
            return self._checkpoint.plain.read(name)
        return stored.values()[:, : self._checkpoint.shapes[name][1]].to(dtype or torch.float32)

    def read_codes(self, name: str) -> Stored | None:
        """See Checkpoint."""
        stored = self._unpack(name)
        if stored is None or stored.bits == 4:
            return stored
        assert stored.scales is not None
        exact = stored.minimums is None and torch.equal(stored.scales.half().float(), stored.scales)
        return stored if exact else None

    def _unpack(self, name: str) -> Stored | None:
        opened, base = self._checkpoint, name.removesuffix(".weight")
        if not opened.is_coded(name):
            return None
        return unpack(opened.layout, {part: opened.plain.read(f"{base}.{part}") for part in opened.parts[base]}, base)


def pack(layout: Layout, stored: Stored, num_inputs: int) -> dict[str, Tensor]:
    """The parts of rounded rows in our own layout or GPTQ's. Loses nothing but the padding.

    Of our own, `num_inputs` must be even for 4 bits. Of GPTQ, it must be a multiple of the group, the number of rows
    one of the codes in a word, and no zero may be below what is taken off a stored one.
    """
    stored = stored.unpacked()
    assert stored.codes is not None and stored.scales is not None
    codes_RK, step = stored.codes[:, :num_inputs], layout.group // GROUP
    scales_RG = stored.scales[:, ::step]
    minimums_RG = None if stored.minimums is None else stored.minimums[:, ::step]
    if layout.method == "gptq":
        return _pack_gptq(layout, codes_RK, scales_RG, minimums_RG)
    assert layout.method == "tokenmill", "exports of AWQ are only read"
    parts = {"codes": codes_RK if stored.bits == 8 else joined_nibbles(codes_RK)}
    parts["scales"] = scales_RG.half()
    return parts if minimums_RG is None else parts | {"minimums": minimums_RG.half()}


def _pack_gptq(layout: Layout, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor | None) -> dict[str, Tensor]:
    num_inputs, fields, middle = codes_RK.shape[1], 32 // layout.bits, 1 << layout.bits - 1
    zeros_RG = torch.full_like(scales_RG, middle)
    if minimums_RG is not None:
        zeros_RG = torch.where(scales_RG == 0, middle, torch.round(-minimums_RG / scales_RG))
        assert torch.equal(-zeros_RG * scales_RG, minimums_RG), "a minimum that is no zero times its scale"
    stored_GR = (zeros_RG - layout.zero_offset).t()
    assert stored_GR.min() >= 0 and stored_GR.max() < 2 * middle, "a zero that GPTQ cannot store"
    return {
        "qweight": _words(codes_RK.reshape(len(codes_RK), -1, fields).permute(1, 0, 2), layout.bits),
        "qzeros": _words(stored_GR.to(torch.uint8).reshape(len(stored_GR), -1, fields), layout.bits),
        "scales": scales_RG.t().half(),
        "g_idx": torch.arange(num_inputs, dtype=torch.int32) // layout.group,
    }


def unpack(layout: Layout, parts: Mapping[str, Tensor], name: str) -> Stored:
    """R rows of codes. 8 bits with a zero other than 128 come with minimums, which no scheme keeps."""
    for part, tensor in parts.items():
        integer = torch.uint8 if part == "codes" else torch.int32
        if not (tensor.is_floating_point() if part in ("scales", "minimums") else tensor.dtype == integer):
            raise CheckpointError(f"{name}.{part} holds {tensor.dtype}, which is not what {layout.method} stores")
    if layout.method == "tokenmill":
        codes, minimums = parts["codes"], parts.get("minimums")
        if minimums is None:
            return _stored(layout, 8, codes, parts["scales"].float())
        codes_RK = split_nibbles(codes)
        return _stored(layout, 4, codes_RK, parts["scales"].float(), minimums.float())
    if layout.method == "awq":
        codes_KR, zeros_GR = (_fields(parts[part], 4)[..., _AWQ_ORDER].flatten(1) for part in ("qweight", "qzeros"))
        codes_RK = codes_KR.t()
    else:
        if (groups_K := parts.get("g_idx")) is not None:
            # Groups of neighbours: with desc_act, inputs of one group may lie anywhere in the row.
            order_K = torch.arange(len(groups_K)) // (layout.group or len(groups_K))
            if not torch.equal(groups_K, order_K.to(groups_K.dtype)):
                raise CheckpointError(f"{name}.g_idx is not in order (desc_act): such GPTQ exports are not supported")
        codes_RK = _fields(parts["qweight"], layout.bits).permute(1, 0, 2).flatten(1)
        zeros_GR = _fields(parts["qzeros"], layout.bits).flatten(1)
    zeros_RG = (zeros_GR.t() + layout.zero_offset) & (1 << layout.bits) - 1
    scales_RG = parts["scales"].float().t()
    plain = bool((zeros_RG == 1 << layout.bits - 1).all())
    return _stored(layout, layout.bits, codes_RK, scales_RG, None if plain else -zeros_RG.float() * scales_RG)


def _stored(
    layout: Layout, bits: int, codes_RK: Tensor, scales_RG: Tensor, minimums_RG: Tensor | None = None
) -> Stored:
    """See Stored.of_groups. In a layout a group of 0 is a whole row."""
    whole_row = -(-codes_RK.shape[1] // GROUP) * GROUP
    return Stored.of_groups(bits, codes_RK, layout.group or whole_row, scales_RG, minimums_RG)


def _fields(words_AB: Tensor, bits: int) -> Tensor:
    """[A, B] int32 → [A, B, 32 / bits] uint8, from the low bits up."""
    bytes_ABC = words_AB.contiguous().view(torch.uint8).view(*words_AB.shape, 4)  # little-endian, as the file
    return bytes_ABC if bits == 8 else split_nibbles(bytes_ABC)


def _words(fields_ABC: Tensor, bits: int) -> Tensor:
    """The inverse of _fields."""
    bytes_ABC = fields_ABC if bits == 8 else joined_nibbles(fields_ABC)
    return bytes_ABC.contiguous().view(torch.int32).squeeze(-1)
