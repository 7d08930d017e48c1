"""Attention and MLPs that a family describes layer by layer, where the fields of ModelConfig do not say enough."""

from typing import Any

from tokenmill.kernels.attend import AttentionShape
from tokenmill.model.blocks import Projection
from tokenmill.model.config import ConfigReader, Rope
from tokenmill.model.description import MlpBlock
from tokenmill.model.mixers.attention import AttentionBlock


def plain_attention(reader: ConfigReader, rope: Rope | None, clip: float | None = None, **more: Any) -> AttentionBlock:
    """Describe attention to all tokens. clip: the bounds of Q, K and V. more: fields of AttentionBlock."""
    block: AttentionBlock = described_attention(reader, rope, clip=clip, **more)
    return block


def described_attention(
    reader: ConfigReader,
    rope: Rope | None,
    *,
    kind: type[AttentionBlock] = AttentionBlock,
    heads: int | None = None,
    kv_heads: int | None = None,
    value_dim: int | None = None,
    window: int | None = None,
    sinks: bool = False,
    **more: Any,
) -> Any:
    """Describe attention of some kind; the sizes that are not given are read. more: fields of that kind, and clip and
    multipliers of the matrix of Q, K and V.
    """
    head_dim, hidden, all_heads = reader.head_dim(), reader.count("hidden_size"), reader.count("num_attention_heads")
    heads, kv_heads = heads or all_heads, kv_heads or reader.count("num_key_value_heads", all_heads)
    bias, value_dim = reader.flag("attention_bias"), value_dim or head_dim
    parts = (heads * head_dim, kv_heads * head_dim, kv_heads * value_dim)
    of_qkv = {name: more.pop(name) for name in ("clip", "multipliers") if name in more}
    return kind(
        heads,
        kv_heads,
        head_dim,
        **{
            "qkv": Projection("qkv", hidden, parts, bias, ("q", "k", "v"), **of_qkv),
            "out": Projection("out", heads * value_dim, (hidden,), bias),
            "rope": rope,
            "shape": AttentionShape(head_dim**-0.5, window, sinks=sinks),
            "qk_norms": (),
            **more,
        },
    )


def gated_mlp(hidden: int, width: int, activation: str) -> MlpBlock:
    """Describe an MLP with a gate, without biases."""
    up = Projection("gate_up", hidden, (width, width))
    return MlpBlock(up, Projection("down", width, (hidden,)), activation, gated=True)
