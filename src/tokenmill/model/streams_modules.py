"""The modules of several streams of each token."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tokenmill.model.layers import make_linear, make_norm
from tokenmill.model.per_layer_modules import LayerInputs, PerLayer
from tokenmill.model.streams import StreamsBlock, StreamsInputs
from tokenmill.quant.matrix import product
from tokenmill.quant.schemes import Scheme


class Laurel(nn.Module):
    """(x + a + norm(right(left(a)))) / √2 of the sum behind attention x and the input of attention a."""

    def __init__(self, block: StreamsBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.left, self.right = (make_linear(each, scheme, fused) for each in block.laurel)
        self.norm = make_norm(block.norm, fused)

    def forward(self, x_TD: Tensor, normed_TD: Tensor) -> Tensor:
        beside_TD = normed_TD + self.norm(self.right(self.left(normed_TD)))
        return (x_TD + beside_TD) / math.sqrt(2)  # type: ignore[no-any-return]


class Streams(PerLayer):
    """A layer around its two halves. All coefficients are linear in tanh(router(norm(x) / hidden))."""

    def __init__(self, block: StreamsBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__(block, scheme, fused)
        self.num, self.scaled = block.num, block.scaled
        self.laurel, self.router_norm = Laurel(block, scheme, fused), make_norm(block.norm, fused)
        made = (nn.Parameter(torch.empty(shape)) for shape in block.vectors.values())
        self.router, self.predict, self.correct, self.scale = made

    def forward(self, x_TSD: Tensor, input_TP: Tensor, halves: Callable[..., Tensor], *step: Any) -> Tensor:
        coefficients_TSS = product(self._routed(x_TSD[:, 0]), self.predict).view(-1, self.num, self.num)
        predicted_TSD = x_TSD + torch.bmm(coefficients_TSS, x_TSD)
        out_TD = halves(predicted_TSD[:, 0], *step, self.laurel)
        coefficients_TS = product(self._routed(out_TD), self.correct) + 1
        change_TD = out_TD - predicted_TSD[:, 0]
        corrected_TSD = predicted_TSD + change_TD[:, None] * coefficients_TS[..., None]
        first_TD = corrected_TSD[:, 0] * self.scale if self.scaled else corrected_TSD[:, 0]
        added_TD = self.added(first_TD, input_TP)
        return torch.cat((corrected_TSD[:, :1], corrected_TSD[:, 1:] + added_TD[:, None]), dim=1)

    def _routed(self, x_TD: Tensor) -> Tensor:
        routed_TS = product(self.router_norm(x_TD) * x_TD.shape[-1] ** -1.0, self.router)
        return torch.tanh(routed_TS.float()).to(x_TD.dtype)


class StreamsAround(LayerInputs):
    """The streams before the first layer, and their sum behind the last."""

    def __init__(self, inputs: StreamsInputs, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__(inputs, scheme, fused)
        stacks = [[make_linear(inputs.stream, scheme, fused) for _ in range(inputs.num_further)] for _ in range(2)]
        self.expand, self.join = map(nn.ModuleList, stacks)

    def forward(self, token_ids_T: Tensor, x_TD: Tensor) -> tuple[Tensor, list[dict[str, Tensor]]]:
        _, inputs = super().forward(token_ids_T, x_TD)
        further = [matrix(x_TD) for matrix in self.expand]
        return torch.stack([x_TD, *_as_large(further, x_TD)], dim=1), inputs

    def joined(self, x_RD: Tensor) -> Tensor:
        first_RD, *others = x_RD.unbind(1)
        further = [matrix(each) for matrix, each in zip(self.join, others, strict=True)]
        return torch.stack([first_RD, *_as_large(further, first_RD)]).mean(dim=0)


def _as_large(further: Sequence[Tensor], x_TD: Tensor) -> list[Tensor]:
    """Rescale rows to the root mean square of x."""
    wanted_T1 = x_TD.square().mean(-1, keepdim=True) ** 0.5
    means = [each_TD.square().mean(-1, keepdim=True).clamp(min=1e-5) for each_TD in further]
    return [each_TD * wanted_T1 / mean_T1.sqrt() for each_TD, mean_T1 in zip(further, means, strict=True)]
