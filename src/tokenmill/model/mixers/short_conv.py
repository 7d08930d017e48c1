"""A gated short convolution as data (LFM2): out(c · convolve(b · x)), with b, c and x from one matrix."""

from dataclasses import dataclass

from tokenmill.cache.spec import StateSpec
from tokenmill.model.blocks import Norm, Projection


@dataclass(frozen=True)
class ShortConvBlock:
    """It keeps the last num_taps - 1 products b · x of a text. inner: b, c and x, in this order. bias: of the
    convolution.
    """

    inner: Projection
    out: Projection
    num_taps: int
    bias: bool = False

    name = "short_conv"
    rope = None

    @property
    def width(self) -> int:
        return self.out.inputs

    @property
    def keeps(self) -> StateSpec:
        return StateSpec(((self.num_taps - 1, self.width),), ("float32",))

    @property
    def matrices(self) -> dict[str, Projection]:
        return {"inner": self.inner, "out": self.out}

    @property
    def norms(self) -> dict[str, Norm]:
        return {}

    @property
    def vectors(self) -> dict[str, tuple[int, ...]]:
        taps = {"conv": (self.width, self.num_taps)}
        return taps | ({"conv_bias": (self.width,)} if self.bias else {})


def short_conv(hidden: int, num_taps: int, bias: bool) -> ShortConvBlock:
    """Describe a gated convolution of a hidden state so wide; all of its parts have biases, or none."""
    inner, out = Projection("inner", hidden, (hidden,) * 3, bias), Projection("out", hidden, (hidden,), bias)
    return ShortConvBlock(inner, out, num_taps, bias)
