"""Attention whose output is multiplied by gates of a matrix of their own, one for each head or for each of its numbers
(Laguna).
"""

from dataclasses import dataclass

from tokenmill.model.blocks import Projection
from tokenmill.model.mixers.attention import AttentionBlock


@dataclass(frozen=True, kw_only=True)
class GatedAttentionBlock(AttentionBlock):
    """activation: of the gates, "softplus" or "sigmoid"."""

    gate: Projection
    activation: str

    name = "gated_attention"

    @property
    def gate_dim(self) -> int:
        """The gates of a head: one, or one for each of its numbers."""
        return self.gate.outputs // self.num_heads

    @property
    def matrices(self) -> dict[str, Projection]:
        return {"qkv": self.qkv, "gate": self.gate, "out": self.out}
