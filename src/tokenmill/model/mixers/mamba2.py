"""Mamba 2 as data (Dao & Gu 2024, arXiv 2405.21060): a state of each head, that each token decays and adds to.

One matrix gives z, x, B, C and dt; x, B and C pass a short convolution together, then silu. A head's step of a token is
softplus(dt + dt_bias), its decay exp(-exp(A_log) · step). It adds (step · x) ⊗ B to the state and reads C; D · x is
added to the output.
"""

from dataclasses import dataclass
from math import inf

from tokenmill.cache.spec import StateSpec
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.mixers.slices import state_shape


@dataclass(frozen=True)
class Mamba2Block:
    """It keeps the last inputs of the convolution, and a state of each head.

    Each of num_groups has a B and a C of its own, which num_heads / num_groups heads in succession share. inner: z, x,
    B, C and dt, in this order. The output is multiplied by silu(z). norm: of the output, before that if norm_first,
    else after it; it has the weights of all groups, and norms each group by itself. dt_limits: a head's step is brought
    between them.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_dim: int
    num_taps: int
    inner: Projection
    out: Projection
    norm: Norm | None
    norm_first: bool = False
    conv_bias: bool = True
    dt_limits: tuple[float, float] = (0.0, inf)

    name = "mamba2"
    rope = None

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def num_channels(self) -> int:
        """Count the channels of the convolution."""
        return self.width + 2 * self.num_groups * self.state_dim

    @property
    def keeps(self) -> StateSpec:
        state = state_shape(self.num_heads, self.state_dim, self.head_dim)
        return StateSpec(((self.num_taps - 1, self.num_channels), state), ("float32", "float32"))

    @property
    def matrices(self) -> dict[str, Projection]:
        return {"inner": self.inner, "out": self.out}

    @property
    def norms(self) -> dict[str, Norm]:
        return {} if self.norm is None else {"norm": self.norm}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        heads = dict.fromkeys(("A_log", "D", "dt_bias"), (self.num_heads,))
        bias = {"conv_bias": (self.num_channels,)} if self.conv_bias else {}
        return {"conv": (self.num_channels, self.num_taps), **bias, **heads}


def mamba2(
    hidden: int,
    *,
    num_heads: int,
    head_dim: int,
    num_groups: int,
    state_dim: int,
    num_taps: int,
    eps: float,
    bias: bool,
    conv_bias: bool,
    dt_limits: tuple[float, float] = (0.0, inf),
) -> Mamba2Block:
    """Describe Mamba 2, as most families have it. bias: of both matrices."""
    width, shared = num_heads * head_dim, num_groups * state_dim
    return Mamba2Block(
        num_heads,
        head_dim,
        num_groups,
        state_dim,
        num_taps,
        inner=Projection("inner", hidden, (width, width, shared, shared, num_heads), bias),
        out=Projection("out", width, (hidden,), bias),
        norm=Norm(width, "rms", eps),
        conv_bias=conv_bias,
        dt_limits=dt_limits,
    )
