"""Kimi delta attention as data (Kimi Linear, arXiv 2510.26692): a delta net in which each number of a key has a decay.

q, k and v pass a short convolution together, then silu; q and k are brought to length 1. The decay of a number of a
head's key is exp(-exp(A_log) · softplus(f + dt_bias)), with f from two matrices, as the gate of the output is; the
strength of a head's change is sigmoid(b).
"""

from dataclasses import dataclass

from tokenmill.cache.spec import StateSpec
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.mixers.slices import state_shape


@dataclass(frozen=True)
class KimiDeltaBlock:
    """It keeps the last inputs of the convolution, and a state of each head.

    qkv: in this order. beta: b of each head. forget: the two matrices of f. gate: the two of the numbers whose sigmoid
    multiplies the normed output. norm: of each head.
    """

    num_heads: int
    head_dim: int
    num_taps: int
    qkv: Projection
    beta: Projection
    forget: tuple[Projection, Projection]
    gate: tuple[Projection, Projection]
    out: Projection
    norm: Norm

    name = "kda"
    rope = None

    @property
    def num_channels(self) -> int:
        """Count the channels of the convolution: all of q, k and v."""
        return self.qkv.outputs

    @property
    def keeps(self) -> StateSpec:
        state = state_shape(self.num_heads, self.head_dim, self.head_dim)
        return StateSpec(((self.num_taps - 1, self.num_channels), state), ("float32", "float32"))

    @property
    def matrices(self) -> dict[str, Projection]:
        pairs = {"forget": self.forget, "gate": self.gate}
        low = {
            f"{role}_{end}": each for role, pair in pairs.items() for end, each in zip(("in", "out"), pair, strict=True)
        }
        return {"qkv": self.qkv, "beta": self.beta, **low, "out": self.out}

    @property
    def norms(self) -> dict[str, Norm]:
        return {"norm": self.norm}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        width = self.num_heads * self.head_dim
        return {"conv": (self.num_channels, self.num_taps), "A_log": (self.num_heads,), "dt_bias": (width,)}


def kimi_delta(hidden: int, *, num_heads: int, head_dim: int, num_taps: int, eps: float) -> KimiDeltaBlock:
    """Describe Kimi delta attention."""
    width = num_heads * head_dim
    low = Projection("low", hidden, (head_dim,)), Projection("high", head_dim, (width,))
    return KimiDeltaBlock(
        num_heads,
        head_dim,
        num_taps,
        qkv=Projection("qkv", hidden, (width, width, width), names=("q", "k", "v")),
        beta=Projection("beta", hidden, (num_heads,)),
        forget=low,
        gate=low,
        out=Projection("out", width, (hidden,)),
        norm=Norm(head_dim, "rms", eps),
    )
