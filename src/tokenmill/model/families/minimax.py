"""MiniMax-M2: Mixtral with sigmoid scores, which are corrected, and norms of Q and K over all heads of a token."""

from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama
from tokenmill.model.families.llama import MIXTRAL

_NAMES = {**MIXTRAL.names, "layers.{i}.block_sparse_moe.e_score_correction_bias": "layers.{i}.mlp.correction"}
_ALSO = {**MIXTRAL.also, "layers.{i}.mlp.e_score_correction_bias": "layers.{i}.mlp.correction"}


def _minimax_m2(reader: ConfigReader) -> dict[str, Any]:
    kinds = reader.entries("attn_type_list", int, [])
    if set(kinds) - {1}:
        raise reader.refuse("attn_type_list", kinds, "only 1, which is attention by softmax, is implemented")
    head_dim, rotated = reader.head_dim(), reader.count("rotary_dim", None)
    if rotated is not None:
        reader.values = {"partial_rotary_factor": rotated / head_dim, **reader.values}
    return {
        "head_dim": head_dim,
        "qk_norm": QKNorm("all"),
        "num_experts": reader.count("num_local_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "router_scores": "sigmoid",
        "router_correction": True,
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.expect("expert_gating_func", ..., 2)  # sigmoid
    keys.expect("expert_weights_norm", True, False)  # which llama.cpp does not read
    config = like_llama(keys, rotates_all=False)
    del config["partial_rotary_factor"]
    return config | {
        "rotary_dim": keys.rotary(config["head_dim"]),
        **keys.experts(),
        "intermediate_size": keys.expert_width(),
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    return {"expert_feed_forward_length": model.intermediate_size, "expert_gating_func": 2}


MINIMAX_M2 = Family(
    _NAMES,
    _minimax_m2,
    defaults={
        **sizes(200064, 3072, 1536, 62, 48, 8, head_dim=128, context=196608),
        "eos_token_id": 200020,
        "num_experts_per_tok": 8,
        "num_local_experts": 256,
        "partial_rotary_factor": 1.0,
        "rope_theta": 5e6,
    },
    nulls={"partial_rotary_factor": 1.0},
    aliases={"num_experts": "num_local_experts"},
    expected={
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "shared_intermediate_size": 0,
        "sliding_window": None,
        "attention_bias": False,
    },
    gguf=InGGUF("minimax-m2", read=_read_gguf, metadata=_metadata, needs=("own head",)),
    harmless=("use_mtp", "num_mtp_modules", "mtp_transformer_layers"),  # of layers that predict further tokens
    also=_ALSO,
)
