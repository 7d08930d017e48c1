"""The states of one layer as tensors: for each slot, what the layer keeps of one text."""

import torch
from torch import Tensor

from tokenmill.cache.formats.layer import Zeros
from tokenmill.cache.spec import StateSpec


class LayerStates:
    """tensors: [slots, *shape] for each shape of the spec. A text that begins has states of zeros, in no slot yet."""

    def __init__(self, num_slots: int, spec: StateSpec, zeros: Zeros) -> None:
        shapes = zip(spec.shapes, spec.dtypes, strict=True)
        self.tensors = tuple(zeros((num_slots, *shape), getattr(torch, dtype)) for shape, dtype in shapes)
        self.kinds = tuple(f"state{number}" for number in range(len(self.tensors)))

    def read(self, slot: int, is_new: bool) -> list[Tensor]:
        """Copy the states in a slot; zeros where the text is new."""
        return [torch.zeros_like(tensor[slot]) if is_new else tensor[slot].clone() for tensor in self.tensors]

    def write(self, slot: int, *states: Tensor) -> None:
        """Put states into a slot, in place."""
        for tensor, state in zip(self.tensors, states, strict=True):
            tensor[slot] = state
