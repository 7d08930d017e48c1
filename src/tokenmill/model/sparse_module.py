"""The module of an MLP of whose gates the largest alone are kept."""

from collections.abc import Collection

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.model.layers import MLP
from tokenmill.model.sparse import SparseMlpBlock
from tokenmill.quant.schemes import Scheme


class SparseMLP(MLP):
    """down(act(relu(gate(x) - (mean + cutoff · deviation))) · up(x)), with mean and deviation over the gates."""

    def __init__(self, block: SparseMlpBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__(block, scheme, fused)
        self.cutoff = block.cutoff

    def forward(self, x_TD: Tensor) -> Tensor:
        gate_TF, up_TF = self.up(x_TD).chunk(2, dim=-1)
        deviation_T1, mean_T1 = torch.std_mean(gate_TF, dim=-1, keepdim=True, correction=0)
        # The number is rounded to the model's dtype, as the reference does.
        cutoff = torch.tensor(self.cutoff, dtype=x_TD.dtype, device=x_TD.device)
        kept_TF = F.relu(gate_TF - (mean_T1 + deviation_T1 * cutoff))
        return self.down(self.act(kept_TF) * up_TF)  # type: ignore[no-any-return]
