"""The PyTorch modules as they stand: the reference, on every device."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.config import EngineConfig
from tokenmill.errors import ConfigError
from tokenmill.kernels.attend import Attend
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.description import describe
from tokenmill.model.parameters import count_parameters
from tokenmill.program import Output
from tokenmill.quant.schemes import SCHEMES
from tokenmill.quant.stored import GROUP
from tokenmill.registry import lookup
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["Eager"]


class Eager:
    """Calls the decoder."""

    description = "PyTorch modules as they stand"
    schemes: tuple[str, ...] = ("packed", "dense")
    slow_schemes: tuple[str, ...] = ("q8", "q4", "file")
    attends = False
    only_asked = False
    finds_drafts = False
    compile_s = 0.0

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype, model: ModelConfig) -> str | None:
        """Never."""
        del device, dtype, model  # runs wherever torch does
        return None

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: torch.dtype, scheme: str) -> int:
        """See Program."""
        decoder = describe(model)
        matrices = decoder.matrices.items()
        numbers = sum(count * matrix.outputs * matrix.inputs for matrix, count in matrices)
        copied = lookup(SCHEMES, scheme, "scheme").copies_tied_head
        tied = decoder.head.outputs * decoder.head.inputs if decoder.tied else 0
        rest = (sum(count_parameters(model).values()) - numbers + tied) * dtype.itemsize
        if scheme == "file" and model.code_bits:
            scheme = "q4" if model.code_bits < 7 else "q8"  # a byte for each code in any case
        if scheme not in ("q8", "q4"):
            return rest + (numbers - (0 if copied else tied)) * dtype.itemsize
        # A byte per code, and per group of 32 a float32 scale, for 4 bits a minimum beside it; biases in float32.
        group = GROUP + (8 if scheme == "q4" else 4)
        biases = sum(count * matrix.outputs for matrix, count in matrices if matrix.bias)
        codes = sum(
            count
            * matrix.outputs
            * (matrix.inputs * dtype.itemsize if matrix.role == "router" else -(-matrix.inputs // GROUP) * group)
            for matrix, count in matrices
        )
        return rest + codes + biases * (4 - dtype.itemsize)

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
