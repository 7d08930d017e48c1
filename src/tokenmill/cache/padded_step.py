"""A step in a declared shape, which modules and kernels read in the place of a Step where their code is compiled."""

from dataclasses import dataclass

from torch import Tensor

from tokenmill.cache.formats.layer import over
from tokenmill.cache.pool import LayerKept, LayerStates


@dataclass(slots=True)
class PaddedStep:
    """A step in a declared shape: B sequences of as many tokens each, T in all, over L rows of the cache each.

    A shorter sequence is padded with its last token, which is then written twice; the caller cuts the logits of padding
    off. keys_BL: the slots of positions 0 to L, arbitrary beyond the sequence's end. rows_R: as Step's.

    Where layers keep states, states_B has the slot with which each sequence begins, -1 for the begin of a text, and
    saves_S2 (count, slot) for the state after so many tokens: of each sequence in turn, or several of one span, the
    last of which is that of all its tokens; what follows is padding. Slots that are all -1 change no state.
    """

    token_ids_T: Tensor
    positions_T: Tensor
    slots_T: Tensor
    keys_BL: Tensor
    rows_R: Tensor | None
    num_rows: int
    states_B: Tensor | None = None
    saves_S2: Tensor | None = None


class StatesOver(LayerStates):
    """The states of a layer over given tensors."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors


def kept_over(layer: LayerKept, *tensors: Tensor) -> LayerKept:
    """Make the same layer of the cache over other allocations."""
    return StatesOver(*tensors) if isinstance(layer, LayerStates) else over(layer, *tensors)
