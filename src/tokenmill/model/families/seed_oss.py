"""Seed-OSS of ByteDance: Llama with biases on Q, K and V, and heads of a width of their own."""

from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama, mlp_norm_after_attention
from tokenmill.model.families.llama import NAMES


def _seed_oss(reader: ConfigReader) -> dict[str, Any]:
    return {
        "qkv_bias": reader.flag("attention_bias"),
        "o_bias": reader.flag("attention_out_bias"),
        "mlp_bias": reader.flag("mlp_bias"),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    biases = has_bias(keys, "attention_out_bias", "attn_output.bias") | has_bias(keys, "mlp_bias", "ffn_up.bias")
    return like_llama(keys) | biases | {"attention_bias": keys.has("attn_q.bias")}


SEED_OSS = Family(
    NAMES,
    _seed_oss,
    defaults={
        **sizes(155136, 4096, 27648, 64, 80, 8, head_dim=128, context=524288),
        "attention_bias": True,
        "attention_out_bias": False,
    },
    nulls={"head_dim": None, "num_key_value_heads": None},
    harmless=("residual_dropout",),  # of training
    gguf=InGGUF("seed_oss", mlp_norm_after_attention(), _read_gguf, needs=("no o_bias", "no mlp_bias")),
)
