"""A gated delta net as data (Qwen 3.5, Qwen3-Next, OLMo Hybrid): linear attention by the delta rule, in which each head
has a decay.

q, k and v pass a short convolution together, then silu; q and k are brought to length 1. A head's decay of a token is
exp(-exp(A_log) · softplus(a + dt_bias)), the strength of its change is sigmoid(b).
"""

from dataclasses import dataclass

from tokenmill.cache.spec import StateSpec
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.mixers.slices import state_shape


@dataclass(frozen=True)
class DeltaNetBlock:
    """It keeps the last inputs of the convolution, and a state of each head of v.

    Each head of q and k serves as many heads of v in succession. qkvz: in this order; z multiplies the normed output,
    through silu. gates: b and a of each head of v. norm: of each head. max_beta: 2 where the change may overshoot.
    """

    num_k_heads: int
    num_v_heads: int
    key_dim: int
    value_dim: int
    num_taps: int
    qkvz: Projection
    gates: Projection
    out: Projection
    norm: Norm
    max_beta: float = 1.0

    name = "delta_net"
    rope = None

    @property
    def num_channels(self) -> int:
        """Count the channels of the convolution: all of q, k and v."""
        return sum(self.qkvz.parts[:3])

    @property
    def keeps(self) -> StateSpec:
        state = state_shape(self.num_v_heads, self.key_dim, self.value_dim)
        return StateSpec(((self.num_taps - 1, self.num_channels), state), ("float32", "float32"))

    @property
    def matrices(self) -> dict[str, Projection]:
        return {"qkvz": self.qkvz, "gates": self.gates, "out": self.out}

    @property
    def norms(self) -> dict[str, Norm]:
        return {"norm": self.norm}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        heads = (self.num_v_heads,)
        return {"conv": (self.num_channels, self.num_taps), "A_log": heads, "dt_bias": heads}


def delta_net(
    hidden: int,
    *,
    num_k_heads: int,
    num_v_heads: int,
    key_dim: int,
    value_dim: int,
    num_taps: int,
    eps: float,
    max_beta: float = 1.0,
) -> DeltaNetBlock:
    """Describe a delta net without biases."""
    keys, values = num_k_heads * key_dim, num_v_heads * value_dim
    return DeltaNetBlock(
        num_k_heads,
        num_v_heads,
        key_dim,
        value_dim,
        num_taps,
        qkvz=Projection("qkvz", hidden, (keys, keys, values, values), names=("q", "k", "v", "z")),
        gates=Projection("gates", hidden, (num_v_heads, num_v_heads), names=("b", "a")),
        out=Projection("out", values, (hidden,)),
        norm=Norm(value_dim, "rms", eps),
        max_beta=max_beta,
    )
