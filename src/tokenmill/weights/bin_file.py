"""Files of torch.save, such as pytorch_model.bin. Only torch can list their tensors."""

import zipfile
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError


class BinFile:
    """A file of torch.save, see TensorFile. Only tensors are unpickled, never code.

    The file is mapped. A file of torch before 1.6 is no zip archive: it cannot be mapped and is read at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except Exception as error:  # damaged bytes lead torch's unpickler to a KeyError, a warning, or anything else
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CheckpointError(f"{path} is damaged, or holds more than tensors and is refused: {reason}") from error
        if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
            raise CheckpointError(f"{path} is no state dict: a mapping of names to tensors is needed")
        self._loaded = {str(name): tensor for name, tensor in loaded.items()}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._loaded.items()}
        self.dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in self._loaded.items()}

    def read(self, name: str, rows: range | None = None) -> Tensor:
        tensor: Tensor = self._loaded[name]
        return tensor if rows is None else tensor[rows.start : rows.stop]

    def stored_bytes(self, name: str) -> None:
        return None  # a tensor may be a view with strides
