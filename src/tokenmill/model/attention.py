"""Self-attention of one layer: project, turn, hand over to the kernel, project back.

Multi-head, grouped-query and multi-query attention are the same code with another number of kv heads. Q, K and V are
one matrix. The cache is never seen here: `attend` writes and reads it.
"""

from torch import Tensor, nn

from tokenmill.cache.formats import LayerKV
from tokenmill.cache.step import Step
from tokenmill.kernels.attend import Attend, AttentionShape
from tokenmill.model.config import ModelConfig
from tokenmill.model.layers import RMSNorm
from tokenmill.model.rope import apply_rotary
from tokenmill.quant.schemes import Scheme

__all__ = ["Attention"]


class Attention(nn.Module):
    """One layer's attention; `shape` holds what may differ from layer to layer."""

    def __init__(self, config: ModelConfig, layer: int, scheme: Scheme, attend: Attend) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        wide = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv = scheme.linear(config.hidden_size, wide, config.qkv_bias)
        self.out = scheme.linear(self.num_heads * self.head_dim, config.hidden_size, config.o_bias)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None
        self.shape = AttentionShape(config.scale, config.windows[layer], config.attention_softcap)
        self.attend, self.rotate = attend, apply_rotary  # the latter set by model/fusion.py

    def forward(self, x_TD: Tensor, rotary: tuple[Tensor, Tensor] | None, layer_kv: LayerKV, step: Step) -> Tensor:
        """[T, D] → [T, D]; this layer's cache rows for the step are written on the way."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        qkv_TNH = self.qkv(x_TD).view(-1, heads + 2 * kv_heads, self.head_dim)
        v_TKH = qkv_TNH[:, heads + kv_heads :]
        if self.q_norm is None or self.k_norm is None:
            qk_TNH = qkv_TNH[:, : heads + kv_heads]
            if rotary is not None:
                qk_TNH = self.rotate(qk_TNH, *rotary)
            q_TNH, k_TKH = qk_TNH[:, :heads], qk_TNH[:, heads:]
        else:
            q_TNH = self.q_norm(qkv_TNH[:, :heads])
            k_TKH = self.k_norm(qkv_TNH[:, heads : heads + kv_heads])
            if rotary is not None:
                q_TNH, k_TKH = self.rotate(q_TNH, *rotary), self.rotate(k_TKH, *rotary)
        out_TNH = self.attend(q_TNH, k_TKH, v_TKH, layer_kv, step, self.shape)
        return self.out(out_TNH.reshape(-1, heads * self.head_dim))  # type: ignore[no-any-return]
