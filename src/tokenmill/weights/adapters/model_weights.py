"""The weights of the model beside an adapter, a few of which some kinds of change need."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.parameters import parameter_shapes
from tokenmill.quant.schemes import REFERENCE, Scheme, find_scheme
from tokenmill.weights.checkpoint import Checkpoint, open_checkpoint
from tokenmill.weights.fingerprint import fingerprint, is_full
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.source import WeightSource


class ModelWeights:
    """The weights of the model whose files lie at `path`. scheme: in which an engine stores them. digests: the
    fingerprint of the files that it has loaded, which must still lie there.
    """

    def __init__(
        self, path: Path, model: ModelConfig, scheme: Scheme, digests: Mapping[str, str] | None = None
    ) -> None:
        self.path, self.model, self._scheme, self._digests = path, model, scheme, digests

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        checkpoint = open_checkpoint(self.path)
        if isinstance(checkpoint, PackedCheckpoint) and checkpoint.source.exists():
            checkpoint = open_checkpoint(checkpoint.source)
        if isinstance(checkpoint, PackedCheckpoint):
            what = "a packed model, whose weights cannot be read one by one: load the model itself for this adapter"
            raise CheckpointError(f"{self.path} is {what}")
        if self._digests is not None:
            there = fingerprint(checkpoint.path, "full" if is_full(self._digests) else "sampled")
            if there["weights"] != self._digests.get("weights"):
                what = "has other weights than when the model was loaded: load it again for this adapter"
                raise CheckpointError(f"{checkpoint.path} {what}")
        return checkpoint

    @cached_property
    def _stored(self) -> WeightSource:
        return WeightSource(self._checkpoint, self.model, find_scheme(REFERENCE), torch.float32)

    @cached_property
    def _multiplied(self) -> WeightSource:
        return WeightSource(self._checkpoint, self.model, self._scheme, torch.float32)

    def stored(self, path: str, rows: range) -> Tensor:
        """Read rows of a matrix, or of the embedding, as the files have them, in the decoder's order: float32."""
        return _read(self._stored, path, rows)

    def multiplied(self, path: str, rows: range) -> Tensor:
        """Read rows of a matrix with the values that the engine multiplies by, which it may have rounded: float32."""
        return _read(self._multiplied, path, rows)

    def norm(self, parameter: str) -> Tensor:
        """Read the weight or the bias of a norm, by its name among the decoder's parameters: float32."""
        return self._stored.tensor(parameter).float()

    def bias(self, path: str, rows: range) -> Tensor:
        """Read the bias of rows of a matrix, float32; zeros where it has none."""
        name = f"{path}.bias"
        if name not in parameter_shapes(describe(self.model)):
            return torch.zeros(len(rows))
        return self._stored.tensor(name).float()[rows.start : rows.stop]


def _read(source: WeightSource, path: str, rows: range) -> Tensor:
    return torch.cat([part.values().float() for part in source.matrix(*_place(path), rows)])


def _place(path: str) -> tuple[int | None, str]:
    """Divide the path of a matrix into the number of its layer and its role there."""
    if not path.startswith("layers."):
        return None, path
    _, number, role = path.split(".", 2)
    return int(number), role
