"""The module of the input of a layer that predicts further tokens."""

from collections.abc import Collection

import torch
from torch import Tensor, nn

from tokenmill.model.layers import make_linear, make_norm
from tokenmill.model.mtp import MtpInput
from tokenmill.quant.schemes import Scheme


class MtpInputs(nn.Module):
    """fc([norm(embedding), norm(row)])."""

    def __init__(self, block: MtpInput, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.embedding_norm, self.hidden_norm = (make_norm(norm, fused) for norm in block.norms.values())
        self.fc = make_linear(block.fc, scheme, fused)

    def forward(self, x_TD: Tensor, given_TD: Tensor) -> Tensor:
        """Compute the input of the layer, [T, D], of embeddings and given rows."""
        both_TI = torch.cat([self.embedding_norm(x_TD), self.hidden_norm(given_TD.to(x_TD.dtype))], dim=-1)
        return self.fc(both_TI)  # type: ignore[no-any-return]
