"""Seed-OSS of ByteDance: Llama with biases on Q, K and V, and heads of a width of their own."""

from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family
from tokenmill.model.families.llama import NAMES


def _seed_oss(reader: ConfigReader) -> dict[str, Any]:
    return {
        "qkv_bias": reader.flag("attention_bias", True),
        "o_bias": reader.flag("attention_out_bias", False),
        "mlp_bias": reader.flag("mlp_bias", False),
        "head_dim": reader.count("head_dim", 128),
    }


SEED_OSS = Family(
    NAMES,
    _seed_oss,
    defaults={"max_position_embeddings": 524288},
    harmless=("residual_dropout",),  # of training
)
