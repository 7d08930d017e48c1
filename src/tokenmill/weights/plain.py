"""The Checkpoint, and directories in Hugging Face layout whose tensors are stored in floating point (safetensors,
`.bin`).

A checkpoint describes a model's files by names, shapes and dtypes of tensors, without torch. Tensors are read one at a
time and nothing is kept, so that loading never holds a second copy of the weights. TENSOR_READERS of the registry names
the modules that read other tensors than plain ones, which are imported when the first of them is read.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.errors import CheckpointError
from tokenmill.model.families import Family, find_family, in_gguf
from tokenmill.settings.recommended import Recommended
from tokenmill.text.byte_ranks import read_tekken
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.generation import defaults_of_directory
from tokenmill.weights.tensor_file import TensorFile, open_tensor_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tokenmill.quant.stored import Stored

# Words that torch.compile, FSDP, activation checkpointing and DDP put into the names of a model that they wrap.
_WRAPPERS = re.compile(r"^(module\.)+|(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")


class Checkpoint:
    """A model on disk, open for reading, whatever kind of file it is.

    config: in the words of Hugging Face's config.json. shapes: of every tensor, by the name that it has in `family`.
    num_bytes: of the tensors on disk. rounded: a sentence on codes that `read_codes` rounds again; empty where it
    rounds nothing. dequantized: a sentence on codes that are read as values; empty where all are kept. in_gguf: whether
    tensors have llama.cpp's names, and not Hugging Face's.
    """

    path: Path
    config: dict[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    num_bytes: int
    rounded = ""
    dequantized = ""
    in_gguf = False

    @property
    def family(self) -> Family:
        """The family of the model, with the names of tensors that these files have."""
        return in_gguf(self.config["model_type"], self.shapes) if self.in_gguf else find_family(self.config)

    def dtype_of(self, name: str) -> str:
        """Name the dtype in which `read` gives a tensor where the caller names none."""
        raise NotImplementedError

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        """Read one tensor, in the file's own floating type. dtype: for a quantised tensor, float32 if it is not given.

        rows: the rows to read; where they lie one after the other in the file, nothing else of it is read.
        """
        raise NotImplementedError

    def read_codes(self, name: str, rows: range | None = None) -> "Stored | None":
        """Read one matrix, or some of its rows, as the file's own codes: [outputs, inputs] even where `read` gives it
        the other way round. None if it is stored in floating point, or as codes that are not kept.
        """
        return None

    def mapped_as(self, name: str) -> str:
        """Name the dtype, or the type of GGUF, of a tensor whose rows `mapped` finds; empty for any other tensor."""
        return ""

    def mapped(self, name: str) -> "Tensor":
        """Map the rows of a tensor, of which mapped_as is known; see mapped_table.py."""
        raise NotImplementedError

    def stored_bytes(self, name: str) -> Iterator[bytes] | None:
        """Read a tensor's bytes as they lie in the file, in pieces; None where they do not lie in one place."""
        return None

    def is_zero(self, name: str) -> bool:
        """Tell whether a tensor is nothing but zeros."""
        pieces = self.stored_bytes(name)
        return not self.read(name).any() if pieces is None else not any(map(any, pieces))

    def tokenizer(self) -> Tokenizer | None:
        """Open the tokenizer that travels with the model, if one does."""
        found, tekken = Tokenizer.from_directory(self.path), self.path / "tekken.json"
        return read_tekken(tekken) if found is None and tekken.is_file() else found

    def generation_defaults(self) -> Recommended:
        """Read the sampling settings that the model's files recommend, by their names in SamplingParams."""
        return defaults_of_directory(self.path)


@dataclass(frozen=True, slots=True)
class _Stored:
    """One tensor: the file that it is in, its name there, and the number of one expert where it has a stack of them."""

    file: TensorFile
    name: str
    expert: int | None = None

    def __str__(self) -> str:
        return f"{self.file.path.name} ({self.name})"


class PlainCheckpoint(Checkpoint):
    """Files of one directory, each with some of the tensors, whose names are shown without the words of wrappers.

    CheckpointError, with both places, for a tensor that is in two files or twice in one: it is unknown which is meant.
    """

    def __init__(self, path: Path, config: dict[str, Any], files: Iterable[Path]) -> None:
        self.path, self.config, self.num_bytes = path, config, 0
        self._family: Family | None = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, _Stored] = {}
        twice = []
        for each in files:
            self.num_bytes += each.stat().st_size
            file = open_tensor_file(each)
            for stored_name, shape in file.shapes.items():
                name, stored = _WRAPPERS.sub("", stored_name), _Stored(file, stored_name)
                if name in self._stored:
                    twice.append(f"{name} in {self._stored[name]} and in {stored}")
                self.shapes[name], self._stored[name] = shape, stored
        if twice:
            more = f" and {len(twice) - 1} others" * (len(twice) > 1)
            raise CheckpointError(
                f"{path} holds tensors twice: {twice[0]}{more}; remove the file that is not the model's"
            )

    @property
    def family(self) -> Family:
        return super().family if self._family is None else self._family

    def name_as(self, family: Family) -> None:
        """Read the tensors by the names that this family has."""
        self._family = family

    def dtype_of(self, name: str) -> str:
        stored = self._stored[name]
        return stored.file.dtypes[stored.name]

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        """Read a tensor as a view of the mapped file, whose pages are read when they are used."""
        stored, number = self._stored[name], self._stored[name].expert
        if number is None:
            return stored.file.read(stored.name, rows)
        one = stored.file.read(stored.name, range(number, number + 1))[0]
        return one if rows is None else one[rows.start : rows.stop]

    def mapped_as(self, name: str) -> str:
        stored = self._stored[name]
        is_mapped = stored.expert is None and stored.file.path.suffix == ".safetensors"
        return self.dtype_of(name) if is_mapped and len(self.shapes[name]) == 2 else ""

    def mapped(self, name: str) -> "Tensor":
        return self.read(name)

    def stored_bytes(self, name: str) -> Iterator[bytes] | None:
        stored = self._stored[name]
        return stored.file.stored_bytes(stored.name) if stored.expert is None else None

    def unstack(self, names: re.Pattern[str], prefix: str, scalars: bool = False) -> None:
        """Show each tensor of those names, [experts, …], as one tensor for each expert: name[0], name[1], … scalars:
        also tensors that have one number for each expert.
        """
        found = [name for name in self.shapes if names.fullmatch(name.removeprefix(prefix))]
        for name in [name for name in found if len(self.shapes[name]) > (0 if scalars else 1)]:
            (count, *shape), stored = self.shapes.pop(name), self._stored.pop(name)
            for number in range(count):
                self._show(f"{name}[{number}]", tuple(shape), replace(stored, expert=number))

    def leave_out(self, names: Iterable[str]) -> None:
        """Show no tensors of these names."""
        for name in names:
            del self.shapes[name], self._stored[name]

    def rename(self, name: str, to: str) -> None:
        """Show a tensor under another name."""
        self._show(to, self.shapes.pop(name), self._stored.pop(name))

    def _show(self, name: str, shape: tuple[int, ...], stored: _Stored) -> None:
        if name in self._stored:
            both = f"{name} in {self._stored[name]} and in {stored}"
            raise CheckpointError(f"{self.path} holds tensors twice: {both}; remove the one that is not the model's")
        self.shapes[name], self._stored[name] = shape, stored
