"""The tensors of codes that are whole numbers, as rows of codes: our own, GPTQ's and AWQ's; the first two are written,
too.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.nibbles import joined_nibbles, split_nibbles
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.own import Own
from tokenmill.weights.codes.words import of_groups, of_minimums, of_zeros, on_groups, stream_of, words_of

ORDER_OF_AWQ = [0, 4, 1, 5, 2, 6, 3, 7]  # where the codes of columns 0, 1, … lie among the eight of a word


def pack_own(layout: Own, stored: Stored, num_inputs: int) -> dict[str, Tensor]:
    """Make the parts of rounded rows, whose number of inputs must be even for 4 bits. Loses nothing but the padding."""
    codes_RK, scales_RG, minimums_RG = on_groups(layout, stored, num_inputs)
    parts = {"codes": codes_RK if stored.bits == 8 else joined_nibbles(codes_RK), "scales": scales_RG.half()}
    return parts if minimums_RG is None else parts | {"minimums": minimums_RG.half()}


def unpack_own(layout: Own, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes."""
    scales_RG, minimums_RG = parts["scales"].float(), parts.get("minimums")
    if minimums_RG is None:
        return of_groups(layout, 8, parts["codes"], scales_RG)
    return of_groups(layout, 4, split_nibbles(parts["codes"]), scales_RG, minimums_RG.float())


def pack_gptq(layout: GPTQ, stored: Stored, num_inputs: int) -> dict[str, Tensor]:
    """Make the parts of rounded rows. Loses nothing but the padding.

    The number of inputs must be a multiple of the group, the number of rows a multiple of the codes in a word, and no
    zero may be below the number that is subtracted from a stored one.
    """
    codes_RK, scales_RG, minimums_RG = on_groups(layout, stored, num_inputs)
    middle = 1 << layout.bits - 1
    zeros_RG = torch.full_like(scales_RG, middle)
    if minimums_RG is not None:
        zeros_RG = torch.where(scales_RG == 0, middle, torch.round(-minimums_RG / scales_RG))
        assert torch.equal(-zeros_RG * scales_RG, minimums_RG), "a minimum that is no zero times its scale"
    stored_GR = (zeros_RG - layout.zero_offset).t()
    assert stored_GR.min() >= 0 and stored_GR.max() < 2 * middle, "a zero that GPTQ cannot store"
    return {
        "qweight": words_of(codes_RK, layout.bits).t(),
        "qzeros": words_of(stored_GR.to(torch.uint8), layout.bits),
        "scales": scales_RG.t().half(),
        "g_idx": torch.arange(num_inputs, dtype=torch.int32) // layout.group,
    }


def unpack_gptq(layout: GPTQ, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes, or of values where the inputs of a group are no neighbours. CheckpointError for an input in
    a group that does not exist.
    """
    groups_K, scales_GR = parts.get("g_idx"), parts["scales"]
    codes_RK = stream_of(parts["qweight"].t(), layout.bits)
    zeros_GR = stream_of(parts["qzeros"], layout.bits)[:, : scales_GR.shape[1]]
    if groups_K is not None:
        order_K = torch.arange(len(groups_K)) // (layout.group or len(groups_K))
        is_unset = not groups_K.any()  # zeros alone, which ExLlama's kernels, too, take for inputs in order
        if is_unset or torch.equal(groups_K, order_K.to(groups_K.dtype)):
            groups_K = None
        elif groups_K.min() < 0 or groups_K.max() >= len(scales_GR):
            raise CheckpointError(f"{name}.g_idx names groups that do not exist: it has {len(scales_GR)}")
    return of_zeros(layout, codes_RK, zeros_GR, scales_GR, groups_K)


def unpack_awq(layout: AWQ, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes."""
    if layout.is_fast:
        return _unpack_fast(layout, parts, name)
    scales_GR, zeros = parts["scales"], parts.get("qzeros")
    if layout.version == "gemv":
        codes_RK = stream_of(parts["qweight"], 4)
        groups = layout.num_groups(codes_RK.shape[1])
        scales_GR = scales_GR.t()[:groups]
        zeros_GR = None if zeros is None else stream_of(zeros, 4).t()[:groups]
    else:
        codes_RK = _in_order(stream_of(parts["qweight"], layout.bits)).t()
        zeros_GR = None if zeros is None else _in_order(stream_of(zeros, layout.bits))
    if zeros_GR is None:
        zeros_GR = torch.full_like(scales_GR, 1 << layout.bits - 1, dtype=torch.uint8)
    return of_zeros(layout, codes_RK, zeros_GR, scales_GR)


def _in_order(codes_AR: Tensor) -> Tensor:
    return codes_AR.reshape(len(codes_AR), -1, 8)[..., ORDER_OF_AWQ].flatten(1)


def _unpack_fast(layout: AWQ, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Undo AutoAWQ's pack_intweight.

    A word of 16 bits has four codes; the codes of four rows and 64 inputs lie row after row. Among 32 inputs of a row,
    pairs are first put 0 4 8 12, 1 5 9 13, … and then, in each eight, even ones before odd ones.
    """
    minimums_GR = parts.get("scaled_zeros", parts.get("qzeros"))
    if minimums_GR is None:
        raise CheckpointError(f"{name} has neither qzeros nor scaled_zeros")
    words, shifts = parts["qweight"], torch.arange(0, 16, 4, dtype=torch.int32)
    quarter, num_inputs = words.shape
    codes = (words.int()[..., None] >> shifts & 15).to(torch.uint8)
    codes_RK = codes.view(quarter, num_inputs // 64, 4, 64).transpose(1, 2).reshape(-1, num_inputs)
    eights = codes_RK.view(len(codes_RK), -1, 4, 2, 4).transpose(3, 4)
    codes_RK = eights.transpose(2, 3).reshape(len(codes_RK), num_inputs)
    groups = layout.num_groups(num_inputs)
    return of_minimums(layout, codes_RK, parts["scales"].t()[:, :groups], minimums_GR.t()[:, :groups])
