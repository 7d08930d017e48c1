"""The tensors of GPTQ's layout, as rows of codes and back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.words import of_zeros, on_groups, stream_of, words_of


def pack(layout: GPTQ, stored: Stored, num_inputs: int) -> dict[str, Tensor]:
    """Make the parts of rounded rows. Loses nothing but the padding.

    The number of inputs must be a multiple of the group, that of the rows one of the codes in a word, and no zero may
    be below what is taken off a stored one.
    """
    codes_RK, scales_RG, minimums_RG = on_groups(layout, stored, num_inputs)
    fields, middle = layout.fields, 1 << layout.bits - 1
    zeros_RG = torch.full_like(scales_RG, middle)
    if minimums_RG is not None:
        zeros_RG = torch.where(scales_RG == 0, middle, torch.round(-minimums_RG / scales_RG))
        assert torch.equal(-zeros_RG * scales_RG, minimums_RG), "a minimum that is no zero times its scale"
    stored_GR = (zeros_RG - layout.zero_offset).t()
    assert stored_GR.min() >= 0 and stored_GR.max() < 2 * middle, "a zero that GPTQ cannot store"
    return {
        "qweight": words_of(codes_RK.reshape(len(codes_RK), -1, fields).permute(1, 0, 2), layout.bits),
        "qzeros": words_of(stored_GR.to(torch.uint8).reshape(len(stored_GR), -1, fields), layout.bits),
        "scales": scales_RG.t().half(),
        "g_idx": torch.arange(num_inputs, dtype=torch.int32) // layout.group,
    }


def unpack(layout: GPTQ, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes, or of values where the groups are not of neighbours. CheckpointError for an input in a
    group that there is not.
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
            raise CheckpointError(f"{name}.g_idx names groups that there are not: it has {len(scales_GR)}")
    return of_zeros(layout, codes_RK, zeros_GR, scales_GR, groups_K)
