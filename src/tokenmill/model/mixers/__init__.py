"""The port Mixer: the first half of a layer, which alone sees other tokens, and keeps rows or states of them.

A mixer is a file of facts, without torch, a file of its module, and a line of MIXERS in the registry. A layer may have
several. A program refuses the mixers that it does not know in one place, `refuse_mixers` of program/spec.py.
"""

from collections.abc import Mapping
from typing import Protocol

from tokenmill.cache.spec import LayerSpec
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import Rope


class Mixer(Protocol):
    """The facts of a mixer: a frozen record, equal where two layers mix alike. name: its name in MIXERS, with which the
    names of its parameters begin.

    MIXERS also names its module, which is made of the facts, a weight scheme and the names of fused operations. The
    module's forward takes x [T, D], the angles of its rope, its layer of the pool, the step and the attention kernel.
    """

    @property
    def name(self) -> str: ...

    @property
    def keeps(self) -> LayerSpec:
        """The rows or states that it keeps of a text."""

    @property
    def rope(self) -> Rope | None:
        """How queries and keys are rotated, if they are."""

    @property
    def matrices(self) -> Mapping[str, Projection]:
        """Its matrices, by role."""

    @property
    def norms(self) -> Mapping[str, Norm]:
        """Its norms, by role, in the order in which they are computed."""

    @property
    def vectors(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of its other parameters, by name."""
