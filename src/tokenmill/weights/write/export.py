"""Exports: the file formats that rounded matrices are written in.

`quantize` decides which tensors become codes of how many bits and rounds them; an export only decides what its format
can hold, and writes it. So that any way of rounding goes with any format, the two meet in one function, which
`quantize` passes on: (name, rows [outputs, inputs] in floating point) → the rows as codes.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from tokenmill.hub.progress import Progress
from tokenmill.model.config import ModelConfig
from tokenmill.quant.stored import Stored
from tokenmill.registry import EXPORTS, lookup
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.names import Target
from tokenmill.weights.relaid import in_hugging_face_layout

Rounded = Callable[[str, Tensor], Stored]


@dataclass(frozen=True)
class ExportPlan:
    """The quantised model that is to be written.

    shapes: of every tensor, by the checkpoint's name. bits: of the tensors that become codes. targets: which parameter
    each tensor fills. scheme_bits: of the scheme; a head may have others. group: inputs that share a scale. symmetric:
    whether codes of 4 bits have no zero of their own.
    """

    checkpoint: Checkpoint
    model: ModelConfig
    shapes: Mapping[str, tuple[int, ...]]
    bits: Mapping[str, int]
    targets: Mapping[str, Target]
    scheme_bits: int
    group: int
    symmetric: bool

    def with_8_bits(self, names: Collection[str]) -> "ExportPlan":
        """Plan the same with 8 bits for these tensors."""
        return replace(self, bits={**self.bits, **dict.fromkeys(names, 8)})

    def is_transposed(self, name: str) -> bool:
        """Tell whether the checkpoint stores this tensor [inputs, outputs]."""
        return name in self.targets and self.targets[name].is_transposed


class Export:
    """One file format: its limits, and how it is written.

    is_for_floats: whether a model may be written without any codes. codes_embedding: whether an embedding that is the
    head too may become codes. default_head: the scheme of another head by default. mixes_bits: whether
    some matrices may have 4 bits and others 8.
    """

    is_for_floats = False
    codes_embedding = False
    default_head = "q8"
    mixes_bits = True

    def lay_out(self, checkpoint: Checkpoint) -> Checkpoint:
        """Show a checkpoint with the names of tensors that the format has: here, Hugging Face's.

        ConfigError for a model that the format cannot hold.
        """
        return in_hugging_face_layout(checkpoint)

    def grid(self, bits: int, symmetric: bool) -> str:
        """Name the grid of quant/grid.py whose codes the format holds."""
        raise NotImplementedError

    def leaves(self, bits: int, shape: tuple[int, ...]) -> bool:
        """Tell whether a matrix of this shape stays in floating point."""
        return False

    def check_output(self, path: Path) -> None:
        """Raise ConfigError for a path that cannot be written to."""
        raise NotImplementedError

    def check(self, plan: ExportPlan) -> None:
        """Raise ConfigError for a plan that the format cannot hold. No tensor is read."""
        raise NotImplementedError

    def num_bytes(self, plan: ExportPlan, name: str) -> int:
        """Count the bytes of one tensor as it is written."""
        raise NotImplementedError

    def write(self, plan: ExportPlan, path: Path, rounded: Rounded, progress: Progress, stage: str) -> None:
        """Write all of it. CapacityError when the disk has no space, CheckpointError when writing fails or a tensor
        cannot be written; then nothing is left behind.
        """
        raise NotImplementedError


def find_export(name: str) -> Export:
    export: Export = lookup(EXPORTS, name, "export")()
    return export
