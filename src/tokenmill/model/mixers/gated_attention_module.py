"""The module of attention with gates of a matrix of their own."""

from collections.abc import Collection

from torch import Tensor

from tokenmill.cache.formats.layer import LayerKV
from tokenmill.cache.step import Step
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.layers import make_linear, sigmoid
from tokenmill.model.mixers.attention_module import Attention
from tokenmill.model.mixers.gated_attention import GatedAttentionBlock
from tokenmill.model.mixers.recurrence import softplus
from tokenmill.model.rope import Angles
from tokenmill.quant.schemes import Scheme


class GatedAttention(Attention):
    """Attention, whose results are multiplied by gates before they are projected back."""

    def __init__(self, block: GatedAttentionBlock, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__(block, scheme, fused)
        self.gate, self.gate_dim = make_linear(block.gate, scheme, fused), block.gate_dim
        self.activation = {"softplus": softplus, "sigmoid": sigmoid}[block.activation]

    def forward(self, x_TD: Tensor, angles: Angles | None, layer_kv: LayerKV, step: Step, attend: Attend) -> Tensor:
        gates_TNG = self.activation(self.gate(x_TD).float()).to(x_TD.dtype).view(-1, self.num_heads, self.gate_dim)
        out_TNH = self.attended(x_TD, angles, layer_kv, step, attend)
        return self.out((out_TNH * gates_TNG).flatten(1))  # type: ignore[no-any-return]
