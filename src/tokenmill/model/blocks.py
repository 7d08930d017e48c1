"""What a description of a decoder is made of: norms, matrices by role, and the blocks that a layer joins.

A block names its matrices and counts its parameters; how it is computed is told in attention.py, layers.py and moe.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenmill.kernels.attend import AttentionShape
from tokenmill.model.config import Rope

__all__ = ["AttentionBlock", "ExpertsBlock", "MlpBlock", "Norm", "Projection"]


@dataclass(frozen=True)
class Norm:
    """kind: "rms" or "layer". unit_offset: the input is multiplied by 1 + weight, as Gemma stores it."""

    size: int
    kind: str
    eps: float
    bias: bool = False
    unit_offset: bool = False

    @property
    def num_parameters(self) -> int:
        """Weight and bias."""
        return self.size * (1 + self.bias)


@dataclass(frozen=True)
class Projection:
    """A matrix [outputs, inputs]. parts: its stretches of rows by name, in order, where several are merged into one."""

    role: str
    inputs: int
    parts: tuple[tuple[str, int], ...]
    bias: bool = False

    @property
    def outputs(self) -> int:
        """Rows of all parts."""
        return sum(rows for _, rows in self.parts)

    @property
    def num_weights(self) -> int:
        """Entries of the matrix alone."""
        return self.outputs * self.inputs

    @property
    def num_parameters(self) -> int:
        """Matrix and bias."""
        return self.outputs * (self.inputs + self.bias)


@dataclass(frozen=True)
class AttentionBlock:
    """Q, K and V are one matrix. A q_norm of head_dim entries norms each head by itself, a wider one all together."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv: Projection
    out: Projection
    q_norm: Norm | None
    k_norm: Norm | None
    rope: Rope | None
    shape: AttentionShape

    @property
    def matrices(self) -> tuple[Projection, ...]:
        """All of them."""
        return self.qkv, self.out

    @property
    def num_parameters(self) -> int:
        """Of the matrices, the norms of q and k, and the sinks."""
        norms = [norm for norm in (self.q_norm, self.k_norm) if norm is not None]
        return _total(self.matrices) + _total(norms) + self.num_heads * self.shape.sinks


@dataclass(frozen=True)
class MlpBlock:
    """down(act(gate(x)) * up(x)), with gate and up in one matrix; without a gate down(act(up(x)))."""

    up: Projection
    down: Projection
    activation: str

    @property
    def gated(self) -> bool:
        """Whether `up` holds the gate too, before it."""
        return len(self.up.parts) == 2

    @property
    def width(self) -> int:
        """F"""
        return self.down.inputs

    @property
    def matrices(self) -> tuple[Projection, ...]:
        """All of them."""
        return self.up, self.down

    @property
    def num_parameters(self) -> int:
        """Of both matrices."""
        return _total(self.matrices)


@dataclass(frozen=True)
class ExpertsBlock:
    """Each token goes through the `chosen` of `num` experts that its router scores highest, and through `shared`.

    scores: "softmax" or "sigmoid" of the router's outputs. normalise: the scores of the chosen experts are divided by
    their sum. shared_gate: the shared expert is multiplied by its sigmoid.
    """

    router: Projection
    expert: MlpBlock
    num: int
    chosen: int
    normalise: bool
    scores: str = "softmax"
    shared: MlpBlock | None = None
    shared_gate: Projection | None = None

    @property
    def always(self) -> tuple[Projection, ...]:
        """The matrices that every token is multiplied with."""
        shared = () if self.shared is None else self.shared.matrices
        return (self.router, *shared, *(() if self.shared_gate is None else (self.shared_gate,)))

    @property
    def matrices(self) -> tuple[Projection, ...]:
        """All of them, an expert's as often as there are experts."""
        return (*self.always, *self.expert.matrices * self.num)

    @property
    def num_parameters(self) -> int:
        """Of all matrices, without a list of them: a damaged config may claim millions of experts."""
        return _total(self.always) + self.num * self.expert.num_parameters

    def num_unread(self, num_tokens: int) -> int:
        """Parameters that a step of so many tokens does not read: of experts that none of them can have chosen."""
        return max(self.num - num_tokens * self.chosen, 0) * self.expert.num_parameters


def _total(each: Iterable[Norm | Projection]) -> int:
    return sum(one.num_parameters for one in each)
