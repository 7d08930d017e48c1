"""The modules of what each layer has of each token beside its input."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from tokenmill.model.layers import ACTIVATIONS, Embedding, make_linear, make_norm
from tokenmill.model.per_layer import PerLayerBlock, PerLayerInputs
from tokenmill.quant.schemes import Scheme


class PerLayer(nn.Module):
    """x + norm(projection(act(gate(x)) · row))."""

    def __init__(self, block: PerLayerBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.gate, self.projection = (make_linear(each, scheme, fused) for each in (block.gate, block.projection))
        self.norm, self.act = make_norm(block.norm, fused), ACTIVATIONS[block.activation]

    def forward(self, x_TD: Tensor, input_TP: Tensor, halves: Callable[..., Tensor], *step: Any) -> Tensor:
        """Compute the layer: its two halves, then this part. step: what the halves take beside their input."""
        x_TD = halves(x_TD, *step)
        return x_TD + self.added(x_TD, input_TP)

    def added(self, x_TD: Tensor, input_TP: Tensor) -> Tensor:
        return self.norm(self.projection(self.act(self.gate(x_TD)) * input_TP))  # type: ignore[no-any-return]


class LayerInputs(nn.Module):
    """The rows of all layers, in the model's dtype."""

    def __init__(self, inputs: PerLayerInputs, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.inputs = inputs
        self.embedding = Embedding(inputs.vocab_size, inputs.width)
        self.projection, self.norm = make_linear(inputs.projection, scheme, fused), make_norm(inputs.norm, fused)
        self.join = nn.ModuleList()  # the matrices behind the last layer

    def forward(self, token_ids_T: Tensor, x_TD: Tensor) -> tuple[Tensor, list[dict[str, Tensor]]]:
        """Compute the input of the first layer, and [T, P] for each layer, under the name by which a layer takes it."""
        ids_T = torch.where(token_ids_T < self.inputs.vocab_size, token_ids_T, 0)
        inputs, shape = self.inputs, (-1, self.inputs.num_layers, self.inputs.size)
        rows_TLP: Tensor = self.norm((self.projection(x_TD) * x_TD.shape[-1] ** -0.5).view(shape))
        factor = torch.tensor(inputs.size**0.5, dtype=x_TD.dtype, device=x_TD.device)  # rounded, as the reference does
        rows_TLP = (rows_TLP + (self.embedding(ids_T) * factor).view(shape)) * 2**-0.5
        return x_TD, [{"input_TP": row_TP} for row_TP in rows_TLP.unbind(1)]

    def joined(self, x_RD: Tensor) -> Tensor:
        """Compute the input of the last norm of the last layer's output."""
        return x_RD
