"""The files of one GGUF model: one, or several parts named x-00001-of-00003.gguf and so on.

llama.cpp's `llama-gguf-split` and its converter write such parts. The first has all metadata. Each has its number in
split.no, the number of parts in split.count, and the number of all their tensors in split.tensors.count.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tokenmill.errors import CheckpointError
from tokenmill.hub.weight_files import shards_of
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.gguf.header import Header, TensorInfo, read_header

_MAY_DIFFER = ("split.no", "general.alignment")  # from what the first part says


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
