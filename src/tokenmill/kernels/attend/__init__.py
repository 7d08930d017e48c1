"""Attention backends, and the facts of a layer by which one is chosen. kernel.py has their interface."""

from dataclasses import dataclass


@dataclass(frozen=True)
class AttentionShape:
    """The attention settings that differ between layers.

    window: past tokens that a query sees, itself included. softcap: cap · tanh(x / cap). sinks: one more score per
    head, learned, that takes its share of the weights and has no value. both_ways: a query sees as many later tokens as
    past ones; a span is then a whole text. distances: a number is added to the scores of keys at each distance, see
    Step.bias.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    both_ways: bool = False
    distances: bool = False

    @property
    def is_plain(self) -> bool:
        """Tell whether the weights are the softmax of the scaled products alone, as torch's SDPA computes them."""
        return self.softcap is None and not self.sinks and not self.distances


Shapes = frozenset[AttentionShape]
