"""A mixture of experts beside a dense MLP, as data (Gemma 4): both read the layer's sum through norms of their own, and
the router through a third one. Both results are normed, then added.
"""

from collections import Counter
from dataclasses import dataclass

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import BESIDE, MlpBlock
from tokenmill.model.mixture import ExpertsBlock


@dataclass(frozen=True)
class BesideBlock:
    """norm: of hidden_size, of each of the five. The router's input is multiplied by hidden_size ** -0.5, too."""

    dense: MlpBlock
    mixture: ExpertsBlock
    norm: Norm

    name = "beside"
    rarity = BESIDE

    @property
    def matrices(self) -> Counter[Projection]:
        return self.dense.matrices + self.mixture.matrices

    @property
    def mlps(self) -> list[MlpBlock]:
        return [self.dense, *self.mixture.mlps]

    @property
    def norms(self) -> dict[str, Norm]:
        names = ("dense_norm", "dense_after_norm", "router_norm", "mixture_norm", "mixture_after_norm")
        return dict.fromkeys(names, self.norm)

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        return {f"mixture.{name}": shape for name, shape in self.mixture.vectors.items()}

    def roles(self) -> dict[str, Projection]:
        """Name its matrices by their roles."""
        dense = {f"dense.{role}": matrix for role, matrix in self.dense.roles().items()}
        return dense | {f"mixture.{role}": matrix for role, matrix in self.mixture.roles().items()}
