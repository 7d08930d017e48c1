"""ONE FORWARD, SEVERAL FORMS: every program takes a Step and returns logits, and reads and writes the same pool.

A program is one file and one line in PROGRAMS, fastest first. "auto" takes the first that does not
refuse, of those that make nobody wait.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.config import EngineConfig
from tokenmill.errors import ConfigError
from tokenmill.kernels.attend import Attend
from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.quant.schemes import SCHEMES
from tokenmill.registry import lookup
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["PROGRAMS", "Output", "Program", "choose"]

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


class Program(Protocol):
    """One form of the forward pass."""

    description: str
    """Why one would take it, in a few words."""
    schemes: tuple[str, ...]
    """The weight schemes that it runs, the one for "auto" first."""
    slow_schemes: tuple[str, ...]
    """Those that it gets right and no more."""
    attends: bool
    """True when it reads the cache by itself, without a kernel of kernels/attend."""
    only_asked: bool
    """True when "auto" passes it by."""
    finds_drafts: bool
    """True when it takes drafts that are UNKNOWN and finds them, see Step.has_unknown."""
    compile_s: float
    """Seconds spent on compiling so far."""

    @staticmethod
    def refuse(device: torch.device, dtype: torch.dtype, model: ModelConfig) -> str | None:
        """Why this program cannot run that model there, or None."""

    @staticmethod
    def weight_bytes(model: ModelConfig, dtype: torch.dtype, scheme: str) -> int:
        """What num_weight_bytes will be."""

    def __init__(
        self,
        decoder: Decoder,
        pool: Pool,
        attend: Attend,
        packed: PackedCheckpoint | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        """attend: the kernel for steps as they come; one that attends by itself has no use for it.

        With a packed model, which was made for this program, the decoder has no weights.
        """

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of all weights in the form that it multiplies with."""

    @property
    def num_matrix_bytes(self) -> int:
        """Of those, the matrices and norms that every token reads: without the embedding, with the head."""

    def packed_weights(self) -> tuple[dict[str, Any], Iterable[Tensor]]:
        """What the header of a packed model says of the weights, and these. ConfigError if it does not pack them."""

    @property
    def build_id(self) -> str:
        """What must be equal, beside the settings, for two processes to compute the same bits."""

    def run(self, step: Step) -> Output:
        """Compute the step; the cache rows of all its tokens are written.

        One that computes with torch enters inference mode itself.
        """


def choose(config: EngineConfig, device: torch.device, model: ModelConfig) -> tuple[str, str, type[Program]]:
    """Name, reason and class of the program to use; ConfigError with every reason when none can."""
    name, reasons = config.program, {}
    if name == "auto" and config.aot_package is not None:
        name = "aot"
    elif name == "auto" and config.compile not in ("auto", "no"):
        name = "compiled"
    for candidate in PROGRAMS if name == "auto" else [name]:
        program: type[Program] = lookup(PROGRAMS, candidate, "program")
        if name == "auto" and program.only_asked:
            continue
        reason = _refuse(program, config, device, model)
        if reason is None:
            why = "as asked" if name != "auto" else "the fastest that does not refuse"
            return candidate, f"{program.description}; {why}", program
        reasons[candidate] = reason
    refusals = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items())
    raise ConfigError("program", name, f"none can run this model on {device} ({refusals})")


def _refuse(program: type[Program], config: EngineConfig, device: torch.device, model: ModelConfig) -> str | None:
    """The program's own reason, or a setting that it does not go with."""
    lookup(SCHEMES, "dense" if config.scheme == "auto" else config.scheme, "scheme")
    runs = (*program.schemes, *program.slow_schemes)
    if config.scheme not in ("auto", *runs):
        return f"does not run scheme {config.scheme}, only {', '.join(runs)}"
    if program.attends and config.fuse != EngineConfig.fuse:
        return f"fuses by itself, and fuse {config.fuse} was asked for"
    if program.attends and config.kernel != "auto":
        return f"attends by itself, and kernel {config.kernel} was asked for"
    return program.refuse(device, getattr(torch, config.dtype), model)
