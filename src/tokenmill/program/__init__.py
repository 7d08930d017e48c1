"""ONE FORWARD, SEVERAL FORMS: every program takes a Step and returns logits, and reads and writes the same pool.

A program is one room and one line in PROGRAMS, fastest first. "auto" takes the first that does not refuse, leaving out
those that must compile first. Which weight schemes a program runs follows from the facts that a scheme gives.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.spec import CacheSpec
from tokenmill.cache.step import Step
from tokenmill.config import EngineConfig
from tokenmill.errors import ConfigError
from tokenmill.kernels.attend import Attend
from tokenmill.memory.arena import Allocate
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.program.aot.manifest import Package
from tokenmill.quant.schemes import SCHEMES, Scheme, find_scheme
from tokenmill.registry import lookup
from tokenmill.weights.load import Fill
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["PROGRAMS", "Choice", "ModelParts", "Output", "Program", "choose", "preferred_schemes"]

PROGRAMS = {
    "native": "tokenmill.program.native.program:Native",
    "aot": "tokenmill.program.aot.program:Aot",
    "compiled": "tokenmill.program.compiled.program:Compiled",
    "eager": "tokenmill.program.eager:Eager",
}


class Output(NamedTuple):
    """Logits of a step's wanted rows, [R, V]. token_ids: the step's, with the drafts that the program found, if any."""

    logits_RV: Tensor
    token_ids: Sequence[int] = ()


class ModelParts(NamedTuple):
    """What a program is made from. attend: the kernel for packed steps, for programs that do not attend by themselves.

    packed: a packed model, which was made for this program; the decoder then has no weights. package: for program aot.
    config is resolved. fill: gives a matrix of the decoder its weights, for programs that pack; nothing for the others,
    whose matrices are filled and finished. allocate: gives the memory to pack into.
    """

    decoder: Decoder
    pool: Pool
    attend: Attend
    packed: PackedCheckpoint | None
    package: Package | None
    config: EngineConfig
    fill: Fill
    allocate: Allocate


class Program(Protocol):
    """One form of the forward pass. Everything that it cannot run it refuses by name, before anything is allocated."""

    description: str  # what it is, in a few words: the reason that is shown for choosing it
    attends: bool = False  # it reads the cache by itself, without a kernel of kernels/attend
    only_asked: bool = False  # "auto" never chooses it
    has_threads: bool = False  # it computes in threads of its own, and not in torch's
    finds_drafts: bool = False  # it takes drafts that are UNKNOWN and finds them, see Step.has_unknown
    packs: bool = False  # it has weights in a layout of its own, which packed models hold
    prefers_codes: bool = False  # it multiplies by integer codes fast: "auto" may choose a scheme of codes for it
    compile_s: float = 0.0  # seconds spent on compiling so far
    num_weight_bytes: int  # of all weights in the form that it multiplies with
    num_matrix_bytes: int  # of those, of what every token reads: without the embedding, with the head

    @staticmethod
    def runs(scheme: Scheme) -> bool:
        """Whether it can multiply by matrices that are stored so."""

    @staticmethod
    def refuse(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: torch.device) -> str | None:
        """Why this program cannot run that model with these settings, or None. `config` is resolved."""
        return None

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: torch.dtype, scheme: Scheme) -> int:
        """What num_weight_bytes will be."""

    def __init__(self, parts: ModelParts) -> None: ...

    def packed_weights(self) -> dict[str, Any]:
        """What the header of a packed model says of the weights, which were packed into its file.

        ConfigError if the program does not pack them.
        """
        raise ConfigError("program", "eager", "native: only its weights are packed")

    @property
    def build_id(self) -> str:
        """What must be equal, beside the settings, for two processes to compute the same bits."""

    def run(self, step: Step) -> Output:
        """Compute the step; the cache rows of all its tokens are written.

        One that computes with torch enters inference mode itself.
        """


class Choice(NamedTuple):
    """The program to use, and why. refusals: why each of the faster ones cannot run that "auto" tried before it."""

    name: str
    reason: str
    program: type[Program]
    refusals: Mapping[str, str]


def choose(config: EngineConfig, model: ModelConfig, cache: CacheSpec, device: torch.device) -> Choice:
    """The program to use; ConfigError with every reason when none can."""
    name, reasons = config.program, dict[str, str]()
    if name == "auto" and config.aot_package is not None:
        name = "aot"
    elif name == "auto" and config.compile not in ("auto", "no"):
        name = "compiled"
    for candidate in PROGRAMS if name == "auto" else [name]:
        program: type[Program] = lookup(PROGRAMS, candidate, "program")
        if name == "auto" and program.only_asked:
            continue
        reason = _refuse_scheme(program, config.scheme) or program.refuse(config, model, cache, device)
        if reason is None:
            why = "as asked" if name != "auto" else "the fastest that does not refuse"
            return Choice(candidate, f"{program.description}; {why}", program, reasons)
        reasons[candidate] = reason
    refusals = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items())
    raise ConfigError("program", name, f"none can run this model on {device} ({refusals})")


def preferred_schemes(program: type[Program]) -> list[str]:
    """The weight schemes that "auto" may choose for a program, in the order in which it tries them."""
    schemes = {name: find_scheme(name) for name in SCHEMES}
    fast = [name for name, scheme in schemes.items() if program.prefers_codes or not scheme.is_integer]
    return [name for name in fast if program.runs(schemes[name])]


def _refuse_scheme(program: type[Program], name: str) -> str | None:
    """The reason of a program that does not run the weight scheme of that name, or None."""
    if name == "auto" or program.runs(find_scheme(name)):
        return None
    return f"does not run scheme {name}, only {', '.join(each for each in SCHEMES if program.runs(find_scheme(each)))}"
