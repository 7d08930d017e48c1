"""Program eager: the PyTorch modules as they stand, the reference on every device."""

import os

import torch

from tokenmill.cache.step import Step
from tokenmill.program.forward import ModelParts, Output, Program

SETS = ("avx512_bf16", "vnni", "amx_tile")
"""Instruction sets, beside the one that torch names itself, with which oneDNN adds up a product in another order."""


def _instructions() -> str:
    """Name the instruction sets that decide the bits of torch's products: rows of other sets are not shared."""
    known = [name for name in SETS if getattr(torch.cpu, f"_is_{name}_supported", bool)()]
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    return " ".join([torch.backends.cpu.get_cpu_capability(), *known, *([f"up to {allowed}"] if allowed else [])])


class Eager(Program):
    def __init__(self, parts: ModelParts) -> None:
        self.decoder = decoder = parts.own.load_decoder(parts.weights, parts.config.max_length, parts.config.fused)
        self._layers, self._attend = parts.pool.layers, parts.attend
        self._num_threads = parts.config.threads  # as set: the process may compute in others meanwhile
        tables = [decoder.position_embedding, None if decoder.head is None else decoder.embedding]
        self.num_weight_bytes = decoder.num_bytes
        self.num_matrix_bytes = decoder.num_bytes - sum(each.weight.nbytes for each in tables if each is not None)

    @property
    def build_id(self) -> str:
        return f"torch {torch.__version__} with {_instructions()} on {self._num_threads} threads"

    @torch.inference_mode()
    def run(self, step: Step) -> Output:
        return Output(self.decoder(step, self._layers, self._attend))
