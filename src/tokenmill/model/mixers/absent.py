"""No mixer: a layer whose only half is its MLP (Nemotron-H)."""

from dataclasses import dataclass

from tokenmill.cache.spec import StateSpec
from tokenmill.model.blocks import Norm, Projection


@dataclass(frozen=True)
class AbsentBlock:
    """It keeps nothing and has no parameters. A layer does not call its module."""

    name = "absent"
    rope = None
    keeps = StateSpec((), ())

    @property
    def matrices(self) -> dict[str, Projection]:
        return {}

    @property
    def norms(self) -> dict[str, Norm]:
        return {}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        return {}
