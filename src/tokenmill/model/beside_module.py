"""The module of a mixture of experts beside a dense MLP."""

from collections.abc import Collection

from torch import Tensor, nn

from tokenmill.model.beside import BesideBlock
from tokenmill.model.experts import MoE
from tokenmill.model.layers import MLP, make_norm
from tokenmill.quant.schemes import Scheme


class MixtureBeside(nn.Module):
    """dense_after(dense(dense_norm(x))) + mixture_after(mixture(mixture_norm(x)))."""

    def __init__(self, block: BesideBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.dense, self.mixture = MLP(block.dense, scheme, fused), MoE(block.mixture, scheme, fused)
        for name, norm in block.norms.items():
            self.add_module(name, make_norm(norm, fused))

    def forward(self, x_TD: Tensor) -> Tensor:
        norms = self.get_submodule
        dense_TD = norms("dense_after_norm")(self.dense(norms("dense_norm")(x_TD)))
        routed_TD = norms("router_norm")(x_TD) * x_TD.shape[-1] ** -0.5
        mixed_TD = self.mixture(norms("mixture_norm")(x_TD), routed_TD)
        return dense_TD + norms("mixture_after_norm")(mixed_TD)  # type: ignore[no-any-return]
