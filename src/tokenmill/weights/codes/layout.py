"""The Layout of a quantised directory: which tensors together hold one matrix, and what their shapes must be.

Every method has its own tensors, for R outputs, K inputs and G groups of inputs; each has a file here. What a layout
cannot keep as codes is read as values.
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
    """The tensors that are there of one matrix. read: the bytes of one of them, for the few that hold facts."""

    matrix: str
    shapes: Mapping[str, Shape]
    dtypes: Mapping[str, str]
    read: Callable[[str], bytes]


def any_group(reader: ValueReader, key: str) -> int:
    """A setting: how many inputs share a scale, 0 for all of a row, which other programs call -1."""
    value = reader.take(key)
    return 0 if type(value) is int and value == -1 else reader.count(key)


def anything(reader: ValueReader, key: str) -> Any:
    """A setting that a layout itself reads or that it ignores."""
    return reader.take(key, None)


@dataclass(frozen=True)
class Layout:
    """The way in which a directory stores its codes, or one matrix of it.

    bits: our own directories may hold matrices of 4 and of 8. group: inputs that share a scale, 0 for all of a row.
    zero_offset: what is added to a stored zero. as_values: why the codes are read as values, in a few words; empty
    where they are kept.

    parts: the names of the tensors that hold a matrix. codes: the one with the codes, usually the first; mark: the one
    by which a matrix is found, usually the codes. optional: those that may be missing. floats: those in floating point.
    word: the dtype of the others. num_dimensions: of the codes. has_rows: whether each part has a row for each row of
    the matrix. settings: what each setting of the method may be, its default first, or ... where it has none; or what
    reads it.
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
    def remark(self) -> str:
        """How the text may differ from that of programs that do all that the files ask for; empty if it does not."""
        return ""

    @property
    def has_codes(self) -> bool:
        """Whether its matrices are stored as codes; else what stands beside their weights is passed over."""
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
        """The layout of one matrix, where matrices differ."""
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
        """Whether a tensor is no weight: what the method writes for other programs."""
        return False

    def types_of(self, part: str) -> tuple[str, ...]:
        """The dtypes that a part may have."""
        return FLOATS if part in self.floats else (self.word,)

    def shape_of(self, shapes: Mapping[str, Shape]) -> tuple[int, int]:
        """Return [R, K] of the matrix whose parts have these shapes."""
        raise NotImplementedError

    def part_shapes(self, num_rows: int, num_inputs: int, minimums: bool) -> dict[str, Shape]:
        """Return the shape that every part must have; `minimums` says whether codes of ours have them, and so
        4 bits.
        """
        raise NotImplementedError

    def fits(self, part: str, shape: Shape, wanted: Shape) -> bool:
        """Whether a part may have that shape."""
        return shape == wanted

    @property
    def fields(self) -> int:
        """The layout puts so many codes in a word of 32 bits."""
        return 32 // self.bits

    def num_groups(self, num_inputs: int) -> int:
        return -(-num_inputs // self.group) if self.group else 1


def names_of_module(module: str) -> tuple[str, ...]:
    """List the names under which settings may speak of a module: its own, and those of the same module as the text part
    of a model that sees or hears, too.
    """
    rest = module.removeprefix("model.")
    nested = () if rest == module else (f"model.language_model.{rest}", f"language_model.{rest}")
    return module, f"language_model.{module}", *nested


def odd_group(group: int, num_inputs: int) -> str:
    """Why codes whose scales are for so many inputs are read as values; empty where they are not."""
    is_whole = group == 0 or group >= num_inputs
    return "" if is_whole or group % STEP == 0 else f"groups of {group} inputs, which is no multiple of {STEP}"
