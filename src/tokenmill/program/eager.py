"""The PyTorch modules as they stand: the reference, on every device."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Step
from tokenmill.config import EngineConfig
from tokenmill.errors import ConfigError
from tokenmill.kernels.attend import Attend
from tokenmill.model.blocks import Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.description import describe
from tokenmill.model.parameters import count_parameters
from tokenmill.program import Output
from tokenmill.quant.schemes import Scheme
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["Eager"]


class Eager:
    """Calls the decoder."""

    description = "PyTorch modules as they stand"
    attends = False
    only_asked = False
    finds_drafts = False
    compile_s = 0.0

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """All of them: the module of a matrix multiplies by itself."""
        del scheme
        return True

    @staticmethod
    def prefers(scheme: Scheme) -> bool:
        """Matrices of numbers: codes are turned into numbers again for each product."""
        return not scheme.is_integer

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: torch.device) -> str | None:
        """Never: it runs wherever torch does."""
        del config, model, cache, device
        return None

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: torch.dtype, scheme: Scheme) -> int:
        """See Program."""
        decoder = describe(model)
        matrices = decoder.matrices.items()
        numbers = sum(count * matrix.num_weights for matrix, count in matrices)
        tied = decoder.head.num_weights if decoder.tied else 0
        rest = (sum(count_parameters(model).values()) - numbers + tied) * dtype.itemsize  # all but matrices
        shared = 0 if scheme.copies_tied_head else tied * dtype.itemsize  # a tied head that is the embedding itself
        bias_size = (scheme.fills_in or dtype).itemsize - dtype.itemsize
        biases = sum(count * matrix.outputs for matrix, count in matrices if matrix.bias) * bias_size
        stored = sum(count * _bytes_of(matrix, scheme, dtype, model.code_bits) for matrix, count in matrices)
        return rest + stored - shared + biases

    def __init__(
        self,
        decoder: Decoder,
        pool: Pool,
        attend: Attend,
        packed: PackedCheckpoint | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        del config
        if packed is not None:
            self.packed_weights()
        self._decoder, self._layers, self._attend = decoder, pool.layers, attend

    @property
    def num_weight_bytes(self) -> int:
        """See Program."""
        return self._decoder.num_bytes

    @property
    def num_matrix_bytes(self) -> int:
        """See Program."""
        decoder = self._decoder
        tables = [decoder.position_embedding] if decoder.position_embedding is not None else []
        if decoder.head is not None:
            tables.append(decoder.embedding)
        return decoder.num_bytes - sum(table.weight.nbytes for table in tables)

    @property
    def build_id(self) -> str:
        """See Program."""
        return f"torch {torch.__version__} on {torch.get_num_threads()} threads"

    def packed_weights(self) -> tuple[dict[str, Any], Iterable[Tensor]]:
        """Refused: its weights are the model's own."""
        raise ConfigError("program", "eager", "native: only its weights are packed")

    @torch.inference_mode()
    def run(self, step: Step) -> Output:
        """See Program."""
        return Output(self._decoder(step, self._layers, self._attend))


def _bytes_of(matrix: Projection, scheme: Scheme, dtype: torch.dtype, code_bits: float) -> int:
    """What a scheme takes for one matrix; routers stay as numbers."""
    if matrix.role == "router":
        return matrix.num_weights * dtype.itemsize
    return scheme.matrix_bytes(matrix.outputs, matrix.inputs, dtype, code_bits)
