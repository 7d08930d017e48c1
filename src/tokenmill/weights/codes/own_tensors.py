"""The tensors of our own layout of codes, as rows of codes and back."""

from collections.abc import Mapping

from torch import Tensor

from tokenmill.quant.stored import Stored, joined_nibbles, split_nibbles
from tokenmill.weights.codes.own import Own
from tokenmill.weights.codes.words import of_groups, on_groups


def pack(layout: Own, stored: Stored, num_inputs: int) -> dict[str, Tensor]:
    """Make the parts of rounded rows, whose number of inputs must be even for 4 bits. Loses nothing but the padding."""
    codes_RK, scales_RG, minimums_RG = on_groups(layout, stored, num_inputs)
    parts = {"codes": codes_RK if stored.bits == 8 else joined_nibbles(codes_RK), "scales": scales_RG.half()}
    return parts if minimums_RG is None else parts | {"minimums": minimums_RG.half()}


def unpack(layout: Own, parts: Mapping[str, Tensor], name: str) -> Stored:
    """Make R rows of codes."""
    scales_RG, minimums_RG = parts["scales"].float(), parts.get("minimums")
    if minimums_RG is None:
        return of_groups(layout, 8, parts["codes"], scales_RG)
    return of_groups(layout, 4, split_nibbles(parts["codes"]), scales_RG, minimums_RG.float())
