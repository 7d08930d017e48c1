"""Norms and matrices as data: the parts of the descriptions of layers and of their mixers."""

from dataclasses import dataclass

from tokenmill.model.config import ModelConfig


@dataclass(frozen=True)
class Norm:
    """A norm of rows [size], or [heads, size] with weights for each head.

    kind: "rms" or "layer". unit_offset: the input is multiplied by 1 + weight, as Gemma stores it. rounds_last: the
    norm is rounded to the model's dtype after the weight.
    """

    size: int
    kind: str
    eps: float
    bias: bool = False
    unit_offset: bool = False
    weight: bool = True
    rounds_last: bool = False
    heads: int = 1

    @property
    def num_parameters(self) -> int:
        return self.size * self.heads * (self.weight + self.bias)


@dataclass(frozen=True)
class Projection:
    """A matrix [outputs, inputs]. parts: the rows of each matrix that is merged into it, in order. names: the parts'
    names, with which targets of a file's tensors end. multipliers: of the products of each part, after the bias, or
    empty. clip: products are then brought into [-clip, clip]; None for no bounds.
    """

    role: str
    inputs: int
    parts: tuple[int, ...]
    bias: bool = False
    names: tuple[str, ...] = ()
    multipliers: tuple[float, ...] = ()
    clip: float | None = None

    @property
    def is_scaled(self) -> bool:
        return any(each != 1.0 for each in self.multipliers)

    @property
    def outputs(self) -> int:
        return sum(self.parts)

    @property
    def num_weights(self) -> int:
        return self.outputs * self.inputs

    @property
    def num_parameters(self) -> int:
        return self.outputs * (self.inputs + self.bias)


def norm_of(config: ModelConfig, size: int) -> Norm:
    """Describe a norm of the model's kind over so many numbers."""
    bias = config.norm == "layer" and config.norm_bias
    offset, weight = config.norm_unit_offset, config.norm_weight
    return Norm(size, config.norm, config.norm_eps, bias and weight, offset, weight, config.norm_rounds_last)
