"""The tensors of AWQ's layouts, as rows of codes. They are only read."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.quant.stored import Stored
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.words import of_minimums, of_zeros, stream_of

ORDER = [0, 4, 1, 5, 2, 6, 3, 7]  # where the codes of columns 0, 1, … lie among the eight of a word


def unpack(layout: AWQ, parts: Mapping[str, Tensor], name: str) -> Stored:
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
    return codes_AR.reshape(len(codes_AR), -1, 8)[..., ORDER].flatten(1)


def _unpack_fast(layout: AWQ, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Undo AutoAWQ's pack_intweight.

    A word of 16 bits has four codes; those of four rows and 64 inputs lie row after row. Among 32 inputs of a row,
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
