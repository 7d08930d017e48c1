"""One file with tensors by name, as Hugging Face's directories hold them, and the function that opens each kind.

A file is described without torch where its kind allows it: a safetensors file begins with names, shapes and dtypes,
while one of torch's own must be read by torch.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tokenmill.errors import CheckpointError
from tokenmill.registry import TENSOR_FILES, lookup

if TYPE_CHECKING:
    from torch import Tensor

_LFS_POINTER = b"version https://git-lfs"


class TensorFile(Protocol):
    """An open file. shapes, dtypes: of its tensors, by their names; dtypes are torch's names."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]

    def __init__(self, path: Path) -> None: ...

    def read(self, name: str, rows: range | None = None) -> "Tensor":
        """Read one tensor, or rows of it: a view of the mapped file where it can be mapped."""

    def stored_bytes(self, name: str) -> Iterator[bytes] | None:
        """Read a tensor's bytes, in pieces; None where they do not lie in one place of the file."""


def dtype_bytes(name: str) -> int:
    """Return the bytes of one number, by torch's name of its dtype."""
    bits = re.search(r"\d+", name)
    return 1 if bits is None else int(bits[0]) // 8  # "bool" has no number


def open_tensor_file(path: Path) -> TensorFile:
    """Open a file of tensors; CheckpointError for any other file."""
    with path.open("rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise CheckpointError(f"{path} is a pointer of Git LFS, not the file itself: run `git lfs pull`")
    kind = "safetensors" if path.suffix == ".safetensors" else "bin"
    file: TensorFile = lookup(TENSOR_FILES, kind, "model")(path)
    return file
