"""The header of a GGUF file, parsed with every claim checked, and of a model in several files.

GGUF 2 and 3 are: magic, version, two counts, metadata pairs, one record per tensor, padding, tensor data, all
little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Every count and length in the file is
compared with the bytes that are left before anything is looped over or allocated. The gguf package's own reader is not
used, because a crafted file of 49 bytes keeps it busy for ever.

llama.cpp's `llama-gguf-split` and its converter write models in parts, x-00001-of-00003.gguf and so on. The first has
all metadata. Each has its number in split.no, the number of parts in split.count, and the number of all their tensors
in split.tensors.count.
"""

import mmap
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from tokenmill.errors import CheckpointError, file_errors
from tokenmill.hub.weight_files import shards_of
from tokenmill.value_reader import ValueReader, brief

_HEADER_BYTES = 24  # magic, version and the two counts
_MIN_PAIR_BYTES = 8 + 1 + 4 + 1  # length and text of the key, type, value
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8  # length and text of the name, number of dims, one dim, type, offset
# Far above any vocabulary or template, and small enough that no false claim can fill the memory.
_MAX_LENGTH = 1 << 24
_MAX_NAME, _MAX_DEPTH, _MAX_DIMS = 255, 4, 4
_BOOL, _STRING, _ARRAY = 7, 8, 9
_MAY_DIFFER = ("split.no", "general.alignment")  # from the first part's values
# GGUF's type numbers → the letters that numpy gives them.
_NUMBERS = {0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", _BOOL: "u1", 10: "u8", 11: "i8", 12: "f8"}

KIND = gguf.GGMLQuantizationType
CODE_BITS = {
    KIND.Q4_0: 4.5,
    KIND.Q4_1: 5.0,
    KIND.Q5_0: 6.0,
    KIND.Q5_1: 6.0,
    KIND.Q8_0: 8.5,
    KIND.Q3_K: 6.625,
    KIND.Q4_K: 4.625,
    KIND.Q5_K: 5.625,
    KIND.Q6_K: 6.625,
    KIND.IQ4_NL: 8.5,
    KIND.IQ4_XS: 9.0,
    KIND.MXFP4: 8.5,
    **dict.fromkeys((KIND.IQ1_S, KIND.IQ2_XXS, KIND.IQ3_XXS, KIND.IQ3_S), 9.0),
    KIND.TQ1_0: 4.5,
    KIND.TQ2_0: 4.5,
}
"""Types whose codes are kept → bits per number, scales included, as the native program packs them."""
KINDS = tuple(CODE_BITS)
FLOATS = {KIND.F32: "float32", KIND.F16: "float16", KIND.BF16: "bfloat16"}
BITS = {KIND.F32: 32.0, KIND.F16: 16.0, KIND.BF16: 16.0, **CODE_BITS}
"""Bits per number as the native program packs them; 8.5 for every other type, whose values are rounded to 8 bits."""
COMPACT_BITS = BITS | {KIND.Q4_K: 6.0, KIND.Q5_K: 10.0, KIND.MXFP4: 4.25}
COMPACT_BITS |= dict.fromkeys((KIND.Q5_0, KIND.Q5_1, KIND.Q3_K, KIND.Q6_K), 9.0)
"""Bits per number with a byte for each code of more than 4 bits, see quant.quantized.CompactLinear."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: shape outermost first, as torch has it; `offset` counts from Header.data_offset. part: the index of
    its file where a model has several.
    """

    name: str
    shape: tuple[int, ...]
    type: gguf.GGMLQuantizationType
    offset: int
    num_bytes: int
    part: int = 0

    def stretch(self, rows: range) -> "TensorInfo":
        """Describe some rows of the tensor as a tensor."""
        size = self.num_bytes // self.shape[0]
        shape, offset = (len(rows), *self.shape[1:]), self.offset + rows.start * size
        return replace(self, shape=shape, offset=offset, num_bytes=len(rows) * size)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensors' data. Arrays of the metadata are lists."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    data_offset: int


def read_header(path: Path) -> Header:
    """Parse and check the header; CheckpointError names the fault and its byte."""
    with file_errors(path, "read"):
        if path.stat().st_size < _HEADER_BYTES:
            raise CheckpointError(f"{path} is no GGUF file: it is shorter than a header of {_HEADER_BYTES} bytes")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Parser(path, data).header()


class _Parser:
    """A position in the mapped file that moves over one field after another, never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.size, self.at = path, data, len(data), 0

    def header(self) -> Header:
        magic, self.at = self.data[:4], 4
        if magic != b"GGUF":
            raise CheckpointError(f"{self.path} is no GGUF file: it begins with {magic!r}, not {b'GGUF'!r}")
        version = self.numbers("u4", 1, "version")[0]
        if version and version & 0xFFFF == 0:
            raise CheckpointError(f"{self.path} is a big-endian GGUF file: convert it to little-endian")
        if version not in (2, 3):
            raise CheckpointError(f"{self.path} is GGUF version {version}: only 2 and 3 can be read; convert it anew")
        num_tensors, num_pairs = self.numbers("u8", 2, "the two counts")
        metadata = self.records(num_pairs, _MIN_PAIR_BYTES, "metadata key", self.pair)
        alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment is {reprlib.repr(alignment)}, a power of two is needed")
        tensors = self.records(num_tensors, _MIN_TENSOR_BYTES, "tensor", self.tensor)
        data_offset = -(-self.at // alignment) * alignment
        self.check_places(tensors, data_offset, alignment)
        return Header(metadata, tensors, data_offset)

    def records(self, count: int, min_bytes: int, what: str, read: Callable[[str], Any]) -> dict[str, Any]:
        """Read names, and call `read` for the bytes after each. No name may come twice."""
        self.demand(count, min_bytes, f"every {what}")
        found: dict[str, Any] = {}
        for number in range(count):
            name = self.texts(1, f"{what} {number}", _MAX_NAME)[0]
            if not name.isprintable():
                raise self.damaged(f"{what} {number} is {reprlib.repr(name)}, which holds control characters")
            if name in found:
                raise self.damaged(f"{what} {name!r} is there twice")
            found[name] = read(name)
        return found

    def pair(self, key: str) -> Any:
        what = f"the value of {key!r}"
        return self.value(self.numbers("u4", 1, what)[0], what)

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        if kind != _ARRAY:
            return self.values(kind, 1, what)[0]
        if depth == _MAX_DEPTH:
            raise self.damaged(f"{what} nests arrays more than {_MAX_DEPTH} deep")
        inner, count = self.numbers("u4", 1, what)[0], self.numbers("u8", 1, what)[0]
        if count > _MAX_LENGTH:
            raise self.damaged(f"{what} claims {count} entries, at most {_MAX_LENGTH} are allowed")
        if inner != _ARRAY:
            return self.values(inner, count, what)
        self.demand(count, 4 + 8, f"arrays in {what}")
        return [self.value(inner, what, depth + 1) for _ in range(count)]

    def values(self, kind: int, count: int, what: str) -> list[Any]:
        """Read `count` strings, numbers or truth values in a row."""
        if kind == _STRING:
            return self.texts(count, what, _MAX_LENGTH)
        if kind not in _NUMBERS:
            raise self.damaged(f"{what} has the unknown type {kind}")
        numbers = self.numbers(_NUMBERS[kind], count, what)
        if kind != _BOOL:
            return numbers
        if any(number > 1 for number in numbers):
            raise self.damaged(f"{what} is a truth value that is neither 0 nor 1")
        return [number == 1 for number in numbers]

    def tensor(self, name: str) -> TensorInfo:
        what = f"the record of tensor {name!r}"
        num_dims = self.numbers("u4", 1, what)[0]
        if not 1 <= num_dims <= _MAX_DIMS:
            raise self.damaged(f"{what} claims {num_dims} dimensions, 1 to {_MAX_DIMS} are allowed")
        shape = tuple(reversed(self.numbers("u8", num_dims, what)))
        while len(shape) > 2 and shape[0] == 1:  # which ggml does not tell from fewer dimensions
            shape = shape[1:]
        number, offset = self.numbers("u4", 1, what)[0], self.numbers("u8", 1, what)[0]
        try:
            kind = gguf.GGMLQuantizationType(number)
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise self.damaged(f"tensor {name!r} has type {number}, which GGUF does not define") from None
        if min(shape) < 1 or shape[-1] % block:
            raise self.damaged(f"tensor {name!r} is {list(shape)}, but {kind.name} needs rows of {block} · n entries")
        return TensorInfo(name, shape, kind, offset, prod(shape) // block * block_bytes)

    def check_places(self, tensors: dict[str, TensorInfo], data_offset: int, alignment: int) -> None:
        """Check that every tensor lies aligned, inside the file, and on no other."""
        free = 0
        for info in sorted(tensors.values(), key=lambda info: info.offset):
            start, end = data_offset + info.offset, data_offset + info.offset + info.num_bytes
            if info.offset % alignment:
                raise self.damaged(f"tensor {info.name!r} begins at byte {start}, which is not aligned to {alignment}")
            if info.offset < free:
                raise self.damaged(f"tensor {info.name!r} at byte {start} overlaps the one before it")
            if end > self.size:
                raise self.damaged(f"tensor {info.name!r} needs bytes {start} to {end}")
            free = info.offset + info.num_bytes

    def numbers(self, letters: str, count: int, what: str) -> list[Any]:
        dtype = np.dtype("<" + letters)
        self.demand(count, dtype.itemsize, what)
        start, self.at = self.at, self.at + count * dtype.itemsize
        # As a list, because an array would be a view that keeps the file mapped.
        values: list[Any] = np.frombuffer(self.data, dtype, count, start).tolist()
        return values

    def texts(self, count: int, what: str, longest: int) -> list[str]:
        """Read `count` strings in a row, in one loop over local names: a vocabulary with its merges has 100 000."""
        self.demand(count, 8, what)
        data, at, size, texts = self.data, self.at, self.size, []
        for _ in range(count):
            length = int.from_bytes(data[at : at + 8], "little")
            self.at, at = at, at + 8 + length
            if at > size or length > longest:
                raise self.damaged(f"{what} claims a text of {length} bytes, at most {longest} are allowed")
            try:
                texts.append(data[at - length : at].decode())
            except UnicodeDecodeError:
                raise self.damaged(f"{what} is not UTF-8") from None
        self.at = at
        return texts

    def demand(self, count: int, size: int, what: str) -> None:
        """Raise unless the file has that many bytes left."""
        if count * size > self.size - self.at:
            raise self.damaged(f"{count} times {size} bytes are claimed for {what}, {self.size - self.at} are left")

    def damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.path} is damaged or cut short (byte {self.at} of {self.size}): {what}")


class Part(NamedTuple):
    """A file, and the byte from which the offsets of its tensors count."""

    path: Path
    data_offset: int


def read_parts(path: Path) -> tuple[Header, tuple[Part, ...]]:
    """Read the header of the model that a file is, or is a part of, and find the model's files.

    TensorInfo.part is an index of the files. CheckpointError where a part is missing or belongs to another model.
    """
    header = read_header(path)
    count = _number(path, header, "split.count", 1)
    if count < 2:
        return header, (Part(path, header.data_offset),)
    paths = _paths(path, _number(path, header, "split.no", ...) + 1, count)
    headers = [header if each == path else read_header(each) for each in paths]
    for number, each in enumerate(paths):
        _check_part(each, headers[number], number, headers[0])
    tensors: dict[str, TensorInfo] = {}
    for number, each in enumerate(paths):
        found = headers[number].tensors
        if twice := sorted(found.keys() & tensors.keys()):
            where = paths[tensors[twice[0]].part]
            raise CheckpointError(f"tensor {twice[0]!r} is both in {where} and in {each.name}")
        tensors |= {name: replace(info, part=number) for name, info in found.items()}
    claimed = _number(paths[0], headers[0], "split.tensors.count", ...)
    if claimed != len(tensors):
        raise CheckpointError(
            f"{paths[0]}: split.tensors.count is {claimed}, but all parts have {len(tensors)} tensors"
        )
    parts = tuple(Part(each, found.data_offset) for each, found in zip(paths, headers, strict=True))
    return Header(headers[0].metadata, tensors, headers[0].data_offset), parts


def _paths(path: Path, number: int, count: int) -> list[Path]:
    names = shards_of(path.name)
    if len(names) != count or names[min(number, count) - 1] != path.name:
        name = f"…-{number:05}-of-{count:05}.gguf"
        raise CheckpointError(f"{path} is part {number} of {count} of a model, so its name has to be {name}")
    paths = [path.with_name(name) for name in names]
    if missing := [each.name for each in paths if not each.is_file()]:
        raise CheckpointError(
            f"{path} is part {number} of {count} of a model, and beside it is no {', '.join(missing)}"
        )
    return paths


def _check_part(path: Path, header: Header, number: int, first: Header) -> None:
    if (no := _number(path, header, "split.no", ...)) != number:
        raise CheckpointError(f"{path}: split.no is {no}, but it is {number} by its name")
    for key, value in header.metadata.items():
        if key not in _MAY_DIFFER and (key not in first.metadata or first.metadata[key] != value):
            have = brief(first.metadata[key]) if key in first.metadata else "nothing"
            raise CheckpointError(f"{path} is no part of this model: {key} is {brief(value)}, and {have} in the first")


def _number(path: Path, header: Header, key: str, default: Any) -> int:
    return ValueReader(header.metadata, str(path), CheckpointError).count(key, default, minimum=0)
