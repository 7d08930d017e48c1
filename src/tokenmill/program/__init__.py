"""ONE FORWARD, SEVERAL FORMS: every program takes a Step and returns logits, and reads and writes the same pool.

A program is one file and one line in PROGRAMS, fastest first. "auto" takes the first that does not refuse.
"""

from typing import Protocol

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.errors import ConfigError
from tokenmill.model.decoder import Decoder
from tokenmill.registry import lookup

__all__ = ["PROGRAMS", "Program", "choose"]

PROGRAMS = {"eager": "tokenmill.program.eager:Eager"}


class Program(Protocol):
    """One form of the forward pass."""

    description: str
    """Why one would take it, in a few words."""

    @staticmethod
    def refuse(device: torch.device) -> str | None:
        """Why this program cannot run there, or None."""

    def __init__(self, decoder: Decoder, pool: Pool) -> None: ...

    def run(self, step: Step) -> Tensor:
        """Logits of the step's wanted rows, [R, V]; the cache rows of all its tokens are written."""


def choose(name: str, device: torch.device) -> tuple[str, str, type[Program]]:
    """Name, reason and class of the program to use; ConfigError with every reason when none can."""
    reasons = {}
    for candidate in PROGRAMS if name == "auto" else [name]:
        program: type[Program] = lookup(PROGRAMS, candidate, "program")
        reason = program.refuse(device)
        if reason is None:
            why = "as asked" if name != "auto" else "the fastest that does not refuse"
            return candidate, f"{program.description}; {why}", program
        reasons[candidate] = reason
    refusals = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items())
    raise ConfigError("program", name, f"none can run on {device} ({refusals})")
