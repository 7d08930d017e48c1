"""The parts that a load opens for a program before weights are read, each for one program; see ProgramParts."""

from collections.abc import Collection
from typing import NamedTuple

from tokenmill.errors import ConfigError
from tokenmill.memory.arena import Allocate, unreserved
from tokenmill.model.decoder import Decoder
from tokenmill.parallel.collectives import Group
from tokenmill.parallel.ranks import Ranks
from tokenmill.program.aot.package import Package
from tokenmill.program.divided import load_share
from tokenmill.program.forward import ONLY_NATIVE, Program
from tokenmill.weights.load import load_decoder
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.source import WeightSource


class Lent(NamedTuple):
    """The embedding and the head of another model. program: has them. num_logits: logits of the first so many tokens
    alone are wanted, where the program can leave the others out; they are minus infinity then. 0 for all.
    """

    program: Program
    num_logits: int = 0


class Opened(NamedTuple):
    """The opened parts. packed: a packed model, which was made for program native; the weights then know names and
    shapes alone. allocate: gives the memory into which it packs. ranks: the ranks that share memory. package: for
    program aot. group: the ranks that exchange tensors. lent: what the model has of another.
    """

    packed: PackedCheckpoint | None = None
    allocate: Allocate = unreserved
    ranks: Ranks = Ranks()
    package: Package | None = None
    group: Group | None = None
    lent: Lent | None = None

    def load_decoder(self, weights: WeightSource, num_positions: int, fused: Collection[str]) -> Decoder:
        if self.packed is not None:
            raise ConfigError("program", "eager", ONLY_NATIVE)
        lender = None if self.lent is None else getattr(self.lent.program, "decoder", None)
        if self.group is None:
            return load_decoder(weights, num_positions, fused, lender)
        return load_share(weights, num_positions, fused, self.group, lender)
