"""FILES: one face for every kind of checkpoint.

A Checkpoint shows a config in Hugging Face's words, tensors under Hugging Face's names, and a tokenizer. Tensors are
read one at a time and nothing is kept, so that loading never holds a second copy of the weights. Nothing that came
with a model file is executed: `.bin` files are read with weights_only=True.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import quant_method
from tokenmill.model.families import read_config
from tokenmill.model.parameters import count_parameters
from tokenmill.quant.stored import Stored
from tokenmill.registry import lookup
from tokenmill.text.tokenizer import Tokenizer, read_json
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.generation import defaults_of_directory
from tokenmill.weights.packed.header import is_packed_model
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import PackedReader
from tokenmill.weights.protocol import Checkpoint
from tokenmill.weights.quantized_checkpoint import QuantizedCheckpoint, say_codes

__all__ = ["BinCheckpoint", "Checkpoint", "SafetensorsCheckpoint", "open_checkpoint"]


# Kinds of files by suffix. By name, since gguf is slow to import.
FILES = {".gguf": "tokenmill.weights.gguf.checkpoint:GGUFCheckpoint"}


def open_checkpoint(path: Path, reader: PackedReader | None = None) -> Checkpoint:
    """Open a `.gguf` file, a packed model, or a directory in Hugging Face layout (safetensors before `.bin`).

    `reader` may have begun to read a packed model already. CheckpointError for what is damaged, of an unknown kind, or
    has a config whose sizes are far from those of its tensors.
    """
    if path.is_file() and is_packed_model(path):
        opened: Checkpoint = PackedCheckpoint(path, reader)
    elif path.is_file() and path.suffix in FILES:
        opened = lookup(FILES, path.suffix, "model")(path)
    elif path.is_dir():
        opened = _open_directory(path)
    else:
        inside = "; give the directory that it lies in" if path.suffix in (".safetensors", ".bin", ".json") else ""
        raise CheckpointError(
            f"{path} is a {path.suffix or 'nameless'} file, not a model: give a directory in Hugging Face layout, "
            f"a .gguf file or a packed model{inside}"
        )
    _check_sizes(opened)
    return opened


def _open_directory(path: Path) -> Checkpoint:
    config = read_config_json(path)
    for kind in (SafetensorsCheckpoint, BinCheckpoint):
        files = _weight_files(path, kind.SINGLE, kind.INDEX, kind.PATTERN)
        if files:
            plain: Checkpoint = kind(path, config, files)
            return plain if quant_method(config) is None else QuantizedCheckpoint(plain)
    ggufs = sorted(path.glob("*.gguf"))
    found = f"; it holds {ggufs[0].name}, which can be given itself" if ggufs else ""
    raise CheckpointError(f"{path} holds no weights: neither *.safetensors nor pytorch_model*.bin{found}")


def _check_sizes(checkpoint: Checkpoint) -> None:
    """Refuse a config that describes far more than the files hold, before anything is built from its values.

    The exact comparison, tensor by tensor, needs a decoder, whose size these values set; see load.match_tensors.
    """
    model = read_config(checkpoint.config)
    claimed, modules = sum(count_parameters(model).values()), model.num_layers * max(model.num_experts, 1)
    held, tensors = sum(map(prod, checkpoint.shapes.values())), len(checkpoint.shapes)
    if claimed > 2 * held + 1_000_000 or modules > tensors:
        raise CheckpointError(
            f"{checkpoint.path} does not fit its config, which describes {claimed} parameters in {model.num_layers} "
            f"layers; the files hold {held} in {tensors} tensors"
        )


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
                raise CheckpointError(f"{file} is damaged or no safetensors file: {brief(str(error))}") from error
        self.shapes: Mapping[str, tuple[int, ...]] = shapes

    def read(self, name: str) -> Tensor:
        """See Checkpoint. The tensor is a view of the mapped file until it is dropped."""
        with safe_open(self._file_of[name], framework="pt") as opened:
            tensor: Tensor = opened.get_tensor(name)
            return tensor

    def read_codes(self, name: str) -> Stored | None:
        """See Checkpoint."""
        del name
        return None  # floating point

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
        return None  # floating point

    def tokenizer(self) -> Tokenizer | None:
        """See Checkpoint."""
        return Tokenizer.from_directory(self.path)

    def generation_defaults(self) -> dict[str, Any]:
        """See Checkpoint."""
        return defaults_of_directory(self.path)


def _load_bin(file: Path) -> dict[str, Tensor]:
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # damaged bytes lead torch's unpickler to a KeyError, a warning, or anything else
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{file} is damaged, or holds more than tensors and is refused: {reason}") from error
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{file} is no state dict: a mapping of names to tensors is needed")
    return loaded


def _is_in(path: Path, name: object) -> bool:
    try:
        return isinstance(name, str) and Path(name).name == name and (path / name).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _weight_files(path: Path, single: str, index: str, pattern: str) -> list[Path]:
    """The files an index names, or the one file, or all that match; every file of an index must be there."""
    if (path / index).is_file():
        weight_map = ValueReader(
            read_json(path / index).get("weight_map"), f"{path / index}: weight_map", CheckpointError
        )
        wrong = [name for name in weight_map.values.values() if not _is_in(path, name)]
        if wrong:
            raise CheckpointError(f"{path / index} names files that are not in its directory: {brief(wrong)}")
        return [path / name for name in sorted(set(weight_map.values.values()))]
    if (path / single).is_file():
        return [path / single]
    return sorted(path.glob(pattern))
