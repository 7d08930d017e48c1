"""Attention and MLPs that a family describes layer by layer, where the fields of ModelConfig do not say enough."""

from typing import Any

from tokenmill.kernels.attend import AttentionShape
from tokenmill.model.blocks import Projection
from tokenmill.model.config import ConfigReader, Rope
from tokenmill.model.description import MlpBlock
from tokenmill.model.mixers.attention import AttentionBlock


def plain_attention(reader: ConfigReader, rope: Rope | None, clip: float | None = None, **more: Any) -> AttentionBlock:
    """Describe attention to all tokens. clip: the bounds of Q, K and V. more: fields of AttentionBlock."""
    heads, head_dim, hidden = reader.count("num_attention_heads"), reader.head_dim(), reader.count("hidden_size")
    kv_heads, bias = reader.count("num_key_value_heads", heads), reader.flag("attention_bias")
    parts = (heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
    return AttentionBlock(
        heads,
        kv_heads,
        head_dim,
        qkv=Projection("qkv", hidden, parts, bias, ("q", "k", "v"), clip=clip),
        out=Projection("out", heads * head_dim, (hidden,), bias),
        rope=rope,
        shape=AttentionShape(head_dim**-0.5),
        **{"qk_norms": (), **more},
    )


def gated_mlp(hidden: int, width: int, activation: str) -> MlpBlock:
    """Describe an MLP with a gate, without biases."""
    up = Projection("gate_up", hidden, (width, width))
    return MlpBlock(up, Projection("down", width, (hidden,)), activation, gated=True)
