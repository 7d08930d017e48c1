"""FILES: one face for every kind of checkpoint.

A Checkpoint shows a config in Hugging Face's words, tensors under Hugging Face's names, and a tokenizer. Tensors are
read one at a time and nothing is kept, so that loading never holds a second copy of the weights. Nothing that came
with a model file is executed: `.bin` files are read with weights_only=True.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import quant_method
from tokenmill.quant.stored import Stored
from tokenmill.registry import resolve
from tokenmill.text.tokenizer import Tokenizer, read_json
from tokenmill.weights.generation import defaults_of_directory
from tokenmill.weights.packed.header import is_image
from tokenmill.weights.packed.model import ImageCheckpoint
from tokenmill.weights.packed.reader import ImageReader
from tokenmill.weights.quantized_checkpoint import QuantizedCheckpoint, say_codes

__all__ = ["BinCheckpoint", "Checkpoint", "SafetensorsCheckpoint", "open_checkpoint"]


class Checkpoint(Protocol):
    """What the loader needs of a model on disk."""

    path: Path
    config: dict[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    """Every tensor's name (Hugging Face's) and shape."""
    num_bytes: int
    """Size of the tensors on disk."""
    rounded: str
    """What `read_codes` rounds again, in a sentence; empty where it gives everything as it is stored."""

    def read(self, name: str) -> Tensor:
        """One tensor, in the file's own floating type (quantised ones dequantised to float32)."""

    def read_codes(self, name: str) -> Stored | None:
        """One matrix as the file's own codes, [outputs, inputs] even where `read` gives it the other way round.

        None where it is stored as numbers, or in a way that is not kept.
        """

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that travels with the model, if one does."""

    def generation_defaults(self) -> dict[str, Any]:
        """The sampling settings that the model's files recommend, by their names in SamplingParams."""


def open_checkpoint(path: Path, reader: ImageReader | None = None) -> Checkpoint:
    """Open a `.gguf` file, an image, or a directory in Hugging Face layout; safetensors are preferred over `.bin`.

    `reader` may have begun to read an image already.
    """
    if path.is_file() and is_image(path):
        return ImageCheckpoint(path, reader)
    if path.is_file() and path.suffix == ".gguf":
        opened: Checkpoint = resolve("tokenmill.weights.gguf.checkpoint:GGUFCheckpoint")(path)  # gguf imports slowly
        return opened
    if not path.is_dir():
        inside = "; give the directory that it lies in" if path.suffix in (".safetensors", ".bin", ".json") else ""
        raise CheckpointError(
            f"{path} is a {path.suffix or 'nameless'} file, not a model: give a directory in Hugging Face layout, "
            f"a .gguf file or an image{inside}"
        )
    config = read_config_json(path)
    for kind in (SafetensorsCheckpoint, BinCheckpoint):
        files = _weight_files(path, kind.SINGLE, kind.INDEX, kind.PATTERN)
        if files:
            plain: Checkpoint = kind(path, config, files)
            return plain if quant_method(config) is None else QuantizedCheckpoint(plain)
    ggufs = sorted(path.glob("*.gguf"))
    found = f"; it holds {ggufs[0].name}, which can be given itself" if ggufs else ""
    raise CheckpointError(f"{path} holds no weights: neither *.safetensors nor pytorch_model*.bin{found}")


def read_config_json(path: Path) -> dict[str, Any]:
    """The config.json of a model directory; a quantised one says so in the words of a GGUF file."""
    file = path / "config.json"
    if not file.is_file():
        found = sorted(path.glob("*.gguf"))
        hint = f"; give {found[0]} itself" if found else ""
        raise CheckpointError(f"{path} is no model directory: it has no config.json{hint}")
    config, beside = read_json(file), path / "quantize_config.json"
    if "quantization_config" not in config and beside.is_file():  # where AutoGPTQ put it until 0.7
        config["quantization_config"] = {"quant_method": "gptq", **read_json(beside)}
    return say_codes(config)


class SafetensorsCheckpoint:
    """One or more `.safetensors` files. Each read maps the file and lets go of it again."""

    rounded = ""
    SINGLE, INDEX, PATTERN = "model.safetensors", "model.safetensors.index.json", "*.safetensors"

    def __init__(self, path: Path, config: dict[str, Any], files: list[Path]) -> None:
        self.path, self.config = path, config
        self.num_bytes = sum(file.stat().st_size for file in files)
        shapes: dict[str, tuple[int, ...]] = {}
        self._file_of: dict[str, Path] = {}
        for file in files:
            try:
                with safe_open(file, framework="pt") as opened:
                    for name in opened.keys():  # noqa: SIM118  (not a dict: it cannot be iterated)
                        shapes[name] = tuple(opened.get_slice(name).get_shape())
                        self._file_of[name] = file
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file} is damaged or no safetensors file: {error}") from error
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def read(self, name: str) -> Tensor:
        """See Checkpoint. The tensor is a view of the mapped file until it is dropped."""
        with safe_open(self._file_of[name], framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    def read_codes(self, name: str) -> Stored | None:
        """See Checkpoint."""
        del name
        return None  # plain numbers

    def tokenizer(self) -> Tokenizer | None:
        """See Checkpoint."""
        return Tokenizer.from_directory(self.path)

    def generation_defaults(self) -> dict[str, Any]:
        """See Checkpoint."""
        return defaults_of_directory(self.path)


class BinCheckpoint:
    """One or more `pytorch_model*.bin` files, mapped; only tensors are unpickled, never code."""

    rounded = ""
    SINGLE, INDEX, PATTERN = "pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model*.bin"

    def __init__(self, path: Path, config: dict[str, Any], files: list[Path]) -> None:
        self.path, self.config = path, config
        self.num_bytes = sum(file.stat().st_size for file in files)
        self._tensors: dict[str, Tensor] = {}
        for file in files:
            self._tensors.update(_load_bin(file))
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tuple(tensor.shape) for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> Tensor:
        """See Checkpoint. The file's pages are touched only now."""
        return self._tensors[name]

    def read_codes(self, name: str) -> Stored | None:
        """See Checkpoint."""
        del name
        return None  # plain numbers

    def tokenizer(self) -> Tokenizer | None:
        """See Checkpoint."""
        return Tokenizer.from_directory(self.path)

    def generation_defaults(self) -> dict[str, Any]:
        """See Checkpoint."""
        return defaults_of_directory(self.path)


def _load_bin(file: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{file} is damaged, or holds more than tensors and is refused: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{file} is no state dict: a mapping of names to tensors is needed")
    return loaded


def _weight_files(path: Path, single: str, index: str, pattern: str) -> list[Path]:
    """The files an index names, or the one file, or all that match; every file of an index must be there."""
    if (path / index).is_file():
        weight_map = read_json(path / index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{path / index} has no weight_map")
        names = sorted(set(weight_map.values()))
        outside = [name for name in names if not isinstance(name, str) or Path(name).name != name]
        absent = [name for name in names if name not in outside and not (path / name).is_file()]
        if outside or absent:
            raise CheckpointError(f"{path / index} names files that are not in its directory: {[*outside, *absent]}")
        return [path / name for name in names]
    if (path / single).is_file():
        return [path / single]
    return sorted(path.glob(pattern))
