"""The PyTorch modules as they stand: the reference, on every device."""

import torch

from tokenmill.cache.step import Step
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import count_parameters, describe
from tokenmill.program import ModelParts, Output, Program
from tokenmill.quant.schemes import Scheme

__all__ = ["Eager"]


class Eager(Program):
    description = "PyTorch modules as they stand"

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """All of them: the module of a matrix multiplies by itself."""
        return True

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: torch.dtype, scheme: Scheme) -> int:
        decoder = describe(model)
        stored = numbers = 0  # bytes of the matrices, and how many numbers they have in a checkpoint
        for matrix, count in decoder.matrices.items():
            numbers += count * matrix.num_weights
            if matrix.role == "router":  # no scheme rounds a router
                stored += count * matrix.num_weights * dtype.itemsize
            else:
                stored += count * scheme.matrix_bytes(matrix.outputs, matrix.inputs, dtype, model.code_bits)
            if matrix.bias and scheme.rounds_to:
                stored += count * matrix.outputs * (torch.float32.itemsize - dtype.itemsize)
        tied = decoder.head.num_weights if model.tie_embeddings else 0
        shared = tied if scheme.is_plain else 0  # a tied head that is the embedding itself
        return stored + (sum(count_parameters(model).values()) - numbers + tied - shared) * dtype.itemsize

    def __init__(self, parts: ModelParts) -> None:
        if parts.packed is not None:
            self.packed_weights()  # refused
        self.decoder, self._layers, self._attend = parts.decoder, parts.pool.layers, parts.attend
        self._num_threads = parts.config.threads  # of the settings: the process may compute in others meanwhile
        decoder = parts.decoder
        tables = [decoder.position_embedding, None if decoder.head is None else decoder.embedding]
        self.num_weight_bytes = decoder.num_bytes
        self.num_matrix_bytes = decoder.num_bytes - sum(each.weight.nbytes for each in tables if each is not None)

    @property
    def build_id(self) -> str:
        return f"torch {torch.__version__} on {self._num_threads} threads"

    @torch.inference_mode()
    def run(self, step: Step) -> Output:
        return Output(self.decoder(step, self._layers, self._attend))
