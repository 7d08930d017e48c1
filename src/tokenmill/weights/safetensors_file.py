"""Files of safetensors: 8 bytes with the length of a header in JSON, the header, the tensors one after the other."""

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from tokenmill.errors import CheckpointError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.value_reader import brief

if TYPE_CHECKING:
    from torch import Tensor

# The format's names of dtypes that torch has under another name.
DTYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
KINDS = {"F": "float", "I": "int", "U": "uint"}
LENGTH, PIECE = 8, 1 << 22  # bytes of the header's length; bytes that are read at once


class SafetensorsFile:
    """A file of safetensors, see TensorFile. It is mapped for one tensor at a time, and closed again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with held_interrupts(), safe_open(path, framework="numpy") as opened:  # "pt" would import torch
                slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
                self.shapes = {name: tuple(each.get_shape()) for name, each in slices.items()}
                self.dtypes = {name: _dtype(each.get_dtype()) for name, each in slices.items()}
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged or no safetensors file: {brief(str(error))}") from error

    def read(self, name: str, rows: range | None = None) -> "Tensor":
        with held_interrupts(), safe_open(self.path, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name) if rows is None else opened.get_slice(name)[rows.start : rows.stop]
            return tensor

    def stored_bytes(self, name: str) -> Iterator[bytes]:
        first, places = self._places
        begin, end = places[name]
        with self.path.open("rb") as opened:
            opened.seek(first + begin)
            for at in range(begin, end, PIECE):
                yield opened.read(min(PIECE, end - at))

    @cached_property
    def _places(self) -> tuple[int, dict[str, tuple[int, int]]]:
        """Where the data begins, and where each tensor lies in it. Read once, since parsing takes milliseconds."""
        with self.path.open("rb") as opened:
            length = int.from_bytes(opened.read(LENGTH), "little")
            header = json.loads(opened.read(length))
        return LENGTH + length, {name: tuple(header[name]["data_offsets"]) for name in self.shapes}


def _dtype(name: str) -> str:
    """Return torch's name of a dtype: "float16" for "F16"."""
    return DTYPES.get(name) or KINDS.get(name[0], name[0]) + name[1:]
