"""An MLP of whose gates the largest alone are kept, as data (Gemma 3n): what lies less than `cutoff` standard
deviations above the mean of all gates of a token becomes zero before the activation, and the rest is less by as much.
"""

from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from tokenmill.model.description import SPARSE, MlpBlock


@dataclass(frozen=True, kw_only=True)
class SparseMlpBlock(MlpBlock):
    """sparsity: the part of normally distributed gates that becomes zero, between 0 and 1."""

    sparsity: float

    name = "sparse_mlp"
    rarity = SPARSE

    @cached_property
    def cutoff(self) -> float:
        return NormalDist().inv_cdf(self.sparsity)
