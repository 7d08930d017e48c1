"""The Layout of a quantised directory: the tensors that together hold one matrix, and the shapes that they must have.

Every method has its own tensors, for R outputs, K inputs and G groups of inputs; each has a file here. Codes that no
scheme holds are read as values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from tokenmill.value_reader import ValueReader

GROUPS = (32, 64, 128, 256)
FLOATS = ("float16", "bfloat16", "float32", "float64")
STEP = 32  # the inputs of a row that share a scale in our own codes, see quant/schemes.py
Shape = tuple[int, ...]
Choices = tuple[Any, ...] | Callable[[ValueReader, str], Any]


class Parts(NamedTuple):
    """The tensors that a file has of one matrix. read: gives the bytes of one of them, for the few that hold facts."""

    matrix: str
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    read: Callable[[str], bytes]


def any_group(reader: ValueReader, key: str) -> int:
    """Read how many inputs share a scale: 0 for all of a row, which other programs call -1."""
    value = reader.take(key)
    return 0 if type(value) is int and value == -1 else reader.count(key)


def anything(reader: ValueReader, key: str) -> Any:
    """Take a setting that a layout itself reads, or that it ignores."""
    return reader.take(key, None)


@dataclass(frozen=True)
class Layout:
    """The way in which a directory stores its codes, or one matrix of it.

    bits: our own directories may hold matrices of 4 and of 8. group: inputs that share a scale, 0 for all of a row.
    zero_offset: is added to a stored zero. as_values: the reason why codes are read as values, in a few words; empty
    where they are kept.

    parts: the names of the tensors that hold a matrix. codes: the part with the codes, usually the first. mark: the
    part by which a matrix is found, usually the codes. optional: parts that may be missing. floats: parts in floating
    point. word: the dtype of the other parts. num_dimensions: the number of dimensions of the codes. has_rows: whether
    each part has a row for each row of the matrix. settings: by name, the values that a setting of the method may
    have, its default first, or ... where it has no default; or the function that reads it.
    """

    bits: int
    group: int
    zero_offset: int = 0
    as_values: str = ""

    method: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    optional: ClassVar[frozenset[str]] = frozenset()
    floats: ClassVar[tuple[str, ...]] = ("scales", "minimums")
    word: ClassVar[str] = "int32"
    has_rows: ClassVar[bool] = False
    settings: ClassVar[Mapping[str, Choices]]
    num_dimensions: ClassVar[int] = 2

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> "Layout":
        """Read the layout that these settings describe."""
        return cls(found["bits"], max(found["group_size"], 0))

    @property
    def code_bits(self) -> float:
        """Bits per number as the native program packs it, scales included; 0 where the codes are read as values."""
        return 0.0 if self.as_values else 5.0 if self.bits <= 4 else 8.5

    @property
    def compact_bits(self) -> float:
        """Bits per number with codes of 4 bits two in a byte, see quant.quantized.CompactLinear."""
        return 4.25 if self.is_mxfp4 else self.code_bits

    @property
    def is_mxfp4(self) -> bool:
        return False

    @property
    def remark(self) -> str:
        """A request of the files that is not met, for which the text may differ from other programs' text; or empty."""
        return ""

    @property
    def has_codes(self) -> bool:
        """Tell whether its matrices are stored as codes; otherwise the tensors beside their weights are passed over."""
        return True

    @property
    def codes(self) -> str:
        return self.parts[0]

    @property
    def codes_of_any(self) -> tuple[str, ...]:
        """The parts that may have the codes of a matrix of the directory."""
        return (self.codes,)

    @property
    def mark(self) -> str:
        return self.parts[0]

    def of(self, parts: Parts) -> "Layout":
        """Find the layout of one matrix, where matrices differ."""
        return self

    def matrix_of(self, name: str) -> str | None:
        """Return the name of the matrix whose codes a tensor holds, or None for a tensor that holds none."""
        base, _, part = name.rpartition(".")
        if part != self.mark:
            return None
        return base if base.endswith("]") else f"{base}.weight"  # the slice of an expert, see weights/names.py

    def name_of(self, matrix: str, part: str) -> str:
        """Return the name of the tensor that is a part of a matrix."""
        return f"{matrix.removesuffix('.weight')}.{part}"

    def is_beside(self, name: str) -> bool:
        """Tell whether a tensor is no weight, but is written for other programs."""
        return False

    def types_of(self, part: str) -> tuple[str, ...]:
        """Return the dtypes that a part may have."""
        return FLOATS if part in self.floats else (self.word,)

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        """Return [R, K] of the matrix whose parts have these shapes."""
        raise NotImplementedError

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        """Return the shape that every part must have. minimums: whether our own codes have minimums, and so 4 bits."""
        raise NotImplementedError

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        """Tell whether a part may have a shape."""
        return shape == wanted

    @property
    def fields(self) -> int:
        """The number of codes in a word of 32 bits."""
        return 32 // self.bits

    def num_groups(self, num_inputs: int) -> int:
        return -(-num_inputs // self.group) if self.group else 1


def names_of_module(module: str) -> tuple[str, ...]:
    """List the names that settings may have for a module: its own, and its names in a whole model that sees or hears,
    too, of which it is the text part.
    """
    rest = module.removeprefix("model.")
    nested = () if rest == module else (f"model.language_model.{rest}", f"language_model.{rest}")
    return module, f"language_model.{module}", *nested


def odd_group(group: int, num_inputs: int) -> str:
    """Say why codes whose scales are for so many inputs are read as values; empty where they are kept."""
    is_whole = group == 0 or group >= num_inputs
    return "" if is_whole or group % STEP == 0 else f"groups of {group} inputs, which is no multiple of {STEP}"
