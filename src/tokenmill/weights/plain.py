"""What a Checkpoint is, and directories in Hugging Face layout whose tensors are stored in floating point.

Tensors are read one at a time and nothing is kept, so that loading never holds a second copy of the weights.
"""

import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.quant.stored import Stored
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.value_reader import brief
from tokenmill.weights.generation import defaults_of_directory

__all__ = ["Checkpoint", "PlainCheckpoint"]

Shapes = dict[str, tuple[int, ...]]
# What torch.compile, FSDP, activation checkpointing and DDP put into the names of a model that they wrap.
_WRAPPERS = re.compile(r"^(module\.)+|(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_LFS_POINTER = b"version https://git-lfs"


class Checkpoint:
    """A model on disk, open for reading, whatever kind of file it is.

    config: in the words of Hugging Face's config.json. shapes: of every tensor, by Hugging Face's name. num_bytes: of
    the tensors on disk. rounded: what `read_codes` rounds again, in a sentence; empty where it rounds nothing.
    """

    path: Path
    config: dict[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    num_bytes: int
    rounded = ""

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """One tensor, in the file's own floating type. dtype: that of quantised ones, which are dequantised."""
        raise NotImplementedError

    def read_codes(self, name: str) -> Stored | None:
        """One matrix as the file's own codes, [outputs, inputs] even where `read` gives it the other way round.

        None if it is stored in floating point, or as codes that are not kept.
        """
        return None

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that travels with the model, if one does."""
        return Tokenizer.from_directory(self.path)

    def generation_defaults(self) -> dict[str, Any]:
        """The sampling settings that the model's files recommend, by their names in SamplingParams."""
        return defaults_of_directory(self.path)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor: the file that it is in, its name there, and what reads it by that name."""

    file: Path
    name: str
    load: Callable[[str], Tensor]

    def __str__(self) -> str:
        return f"{self.file.name} ({self.name})"


class PlainCheckpoint(Checkpoint):
    """Files of one directory, each with some of the tensors, whose names are shown without those of wrappers.

    CheckpointError, with both places, for a tensor that is in two files or twice in one: which is meant is unknown.
    """

    def __init__(self, path: Path, config: dict[str, Any], files: Iterable[Path]) -> None:
        self.path, self.config, self.num_bytes = path, config, 0
        self.shapes: Shapes = {}
        self._stored: dict[str, _Stored] = {}
        twice = []
        for file in files:
            self.num_bytes += file.stat().st_size
            shapes, load = _open(file)
            for stored_name, shape in shapes.items():
                name, stored = _WRAPPERS.sub("", stored_name), _Stored(file, stored_name, load)
                if name in self._stored:
                    twice.append(f"{name} in {self._stored[name]} and in {stored}")
                self.shapes[name], self._stored[name] = shape, stored
        if twice:
            more = f" and {len(twice) - 1} others" * (len(twice) > 1)
            raise CheckpointError(
                f"{path} holds tensors twice: {twice[0]}{more}; remove the file that is not the model's"
            )

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        """The tensor is a view of the mapped file, whose pages are read when they are used."""
        stored = self._stored[name]
        return stored.load(stored.name)

    def rename(self, name: str, to: str) -> None:
        """Show a tensor under another name."""
        self.shapes[to], self._stored[to] = self.shapes.pop(name), self._stored.pop(name)


def _open(file: Path) -> tuple[Shapes, Callable[[str], Tensor]]:
    """The shapes of a file's tensors, and a function that reads one; CheckpointError for a file that has none."""
    with file.open("rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise CheckpointError(f"{file} is a pointer of Git LFS, not the file itself: run `git lfs pull`")
    return (_open_safetensors if file.suffix == ".safetensors" else _open_bin)(file)


def _open_safetensors(file: Path) -> tuple[Shapes, Callable[[str], Tensor]]:
    """The shapes, and a function that maps the file for one tensor and lets go of it again."""

    def read(name: str) -> Tensor:
        with held_interrupts(), safe_open(file, framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    try:
        with held_interrupts(), safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}, read  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is damaged or no safetensors file: {brief(str(error))}") from error


def _open_bin(file: Path) -> tuple[Shapes, Callable[[str], Tensor]]:
    """The shapes, and the tensors of the mapped file by name; only tensors are unpickled, never code.

    A file of torch before 1.6 is no zip archive. It cannot be mapped and is read at once.
    """
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # damaged bytes lead torch's unpickler to a KeyError, a warning, or anything else
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{file} is damaged, or holds more than tensors and is refused: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{file} is no state dict: a mapping of names to tensors is needed")
    return {str(name): tuple(tensor.shape) for name, tensor in loaded.items()}, loaded.__getitem__
