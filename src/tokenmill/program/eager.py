"""The PyTorch modules as they stand: the reference, on every device."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.config import EngineConfig
from tokenmill.errors import ConfigError
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.parameters import count_biases, count_parameters, matrices
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
        parts, shapes = count_parameters(model), matrices(model)
        numbers = sum(count * outputs * inputs for _, outputs, inputs, count in shapes)
        copied = lookup(SCHEMES, scheme, "scheme").copies_tied_head
        tied = model.vocab_size * model.hidden_size if model.tie_embeddings else 0
        rest = (sum(parts.values()) - numbers + tied) * dtype.itemsize
        if scheme == "file" and model.code_bits:
            scheme = "q4" if model.code_bits < 7 else "q8"  # a byte for each code in any case
        if scheme not in ("q8", "q4"):
            return rest + (numbers - (0 if copied else tied)) * dtype.itemsize
        # A byte per code, and per group of 32 a float32 scale, for 4 bits a minimum beside it; biases in float32.
        group = GROUP + (8 if scheme == "q4" else 4)
        biases = count_biases(model)
        codes = sum(
            count * outputs * (inputs * dtype.itemsize if role == "router" else -(-inputs // GROUP) * group)
            for role, outputs, inputs, count in shapes
        )
        return rest + codes + biases * (4 - dtype.itemsize)

    def __init__(
        self, decoder: Decoder, pool: Pool, packed: PackedCheckpoint | None = None, config: EngineConfig | None = None
    ) -> None:
        del config
        if packed is not None:
            self.packed_weights()
        self._decoder, self._layers = decoder, pool.layers

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
        return Output(self._decoder(step, self._layers))
