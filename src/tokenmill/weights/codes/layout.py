"""The Layout of a quantised directory: which tensors together hold one matrix, and what their shapes must be.

Every method has its own tensors, for R outputs, K inputs and G groups of inputs; see own.py, gptq.py, awq.py and
mxfp4.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

GROUPS = (32, 64, 128, 256)
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The way in which a directory stores its codes.

    bits: of GPTQ and AWQ; our own directories may hold matrices of 4 and of 8. group: inputs that share a scale, 0 for
    all of a row. zero_offset: what is added to a stored zero. parts: the names of the tensors that hold a matrix, the
    codes first. floats: those in floating point. word: the dtype of the others. num_dimensions: of the codes. has_rows:
    whether each part has a row for each row of the matrix. is_transposed: whether the matrix is shown as [K, R], as its
    family has it. settings: what each setting of the method may be, its default first, or ... where it has none.
    """

    bits: int
    group: int
    zero_offset: int = 0

    method: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    floats: ClassVar[tuple[str, ...]] = ("scales", "minimums")
    word: ClassVar[str] = "int32"
    has_rows: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, tuple[Any, ...]]]
    num_dimensions: ClassVar[int] = 2
    is_transposed: ClassVar[bool] = False

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Self:
        """Read the layout that these settings describe."""
        return cls(found["bits"], max(found["group_size"], 0))

    def matrix_of(self, name: str) -> str | None:
        """Return the name of the matrix whose codes a tensor holds, or None for a tensor that holds none."""
        base, _, part = name.rpartition(".")
        if part != self.parts[0]:
            return None
        return base if base.endswith("]") else f"{base}.weight"  # the slice of an expert, see weights/names.py

    def name_of(self, matrix: str, part: str) -> str:
        """Return the name of the tensor that is a part of a matrix."""
        return f"{matrix.removesuffix('.weight')}.{part}"

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        """Return [R, K] of the matrix whose parts have these shapes."""
        raise NotImplementedError

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        """Return the shape that every part must have; `minimums` says whether codes of ours have them, and so
        4 bits.
        """
        raise NotImplementedError

    @property
    def fields(self) -> int:
        """The layout puts so many codes in a word of 32 bits."""
        return 32 // self.bits

    def num_groups(self, num_inputs: int) -> int:
        return -(-num_inputs // self.group) if self.group else 1
