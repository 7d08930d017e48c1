"""The Program interface: made from the parts of a model, it takes a Step and returns logits.

Programs read and write the same pool. spec.py has the facts that are known of a program before it is made.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.errors import ConfigError, RankLost
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.decoder import Decoder
from tokenmill.registry import PROGRAMS, lookup
from tokenmill.settings.engine_config import ResolvedConfig
from tokenmill.weights.source import WeightSource

ONLY_NATIVE = "native: only its weights are packed"


class Output(NamedTuple):
    """Logits of a step's wanted rows, [R, V]. token_ids: the step's tokens, if the program found some of them."""

    logits_RV: Tensor
    token_ids: Sequence[int] = ()


class ProgramParts(Protocol):
    """The port to what a load opens for one program, before weights are read: a packed file, compiled code, other
    ranks. parts.py answers it; a program asserts what it needs of it.
    """

    def load_decoder(self, weights: WeightSource, num_positions: int, fused: Collection[str]) -> Decoder:
        """Load the modules with their weights, or this rank's share. ConfigError without weights to read."""


class ModelParts(NamedTuple):
    """The parts of a model from which a program is made. attend: the kernel for packed steps, for programs that do not
    attend by themselves. config: resolved.
    """

    weights: WeightSource
    pool: Pool
    attend: Attend
    config: ResolvedConfig
    own: ProgramParts


class Program(Protocol):
    """One form of the forward pass, of a model that its ProgramSpec does not refuse."""

    compile_s: float = 0.0  # seconds spent on compiling so far
    num_weight_bytes: int  # of all weights in the form that the program multiplies with
    num_matrix_bytes: int  # of the weights that every token reads: without the embedding, with the head
    num_scratch_bytes: int = 0  # of what it keeps for its steps beside weights and cache
    reads_slots: bool = True  # it reads Span.slots_L; otherwise these are not made

    def __init__(self, parts: ModelParts) -> None: ...

    @classmethod
    def open(cls, config: ResolvedConfig, fingerprint: Mapping[str, str], device: torch.device) -> Any:
        """Open what the program needs beside weights, before they are read. PackageMismatch where it does not fit."""
        return None

    def packed_weights(self, others: Iterable[WeightSource] = ()) -> dict[str, Any]:
        """Describe the weights, which were packed into a file, for the header of that packed model.

        The part that depends on the dtype stands under "dtypes". others: the same weights in other dtypes; the file
        then serves these too, where most of its bytes are the same for them. ConfigError if the program does not pack
        weights.
        """
        raise ConfigError("program", "eager", ONLY_NATIVE)

    @property
    def build_id(self) -> str:
        """Name the build: two processes with equal ids and settings compute the same bits."""

    def run(self, step: Step) -> Output:
        """Compute the step; the cache rows of all its tokens are written.

        A program that computes with torch enters inference mode itself.
        """

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        """Have a function called, in a thread of its own, once a rank has ended: nothing can be computed then."""

    def close(self) -> None:
        """End the other ranks, if there are any. Nothing is run afterwards."""

    def follow(self) -> None:
        """Compute the steps of rank 0 until it ends, on every other rank of ranks that share memory."""


def find_program(name: str) -> type[Program]:
    """Find the class of the program of that name."""
    found: type[Program] = lookup(PROGRAMS, name, "program", computes=True)
    return found
