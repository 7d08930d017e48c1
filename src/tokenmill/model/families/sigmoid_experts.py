"""Experts that are chosen by sigmoid scores with a correction, in DeepSeek-V3's words, which several families share.

Mistral 4 has these words with softmax scores. A family with other names for these keys says so in its `keys`.
"""

from collections.abc import Iterable
from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families.in_gguf import GGUFKeys, expert_metadata, window_metadata
from tokenmill.model.families.qwen_moe import EXPERT_NAMES, mlp_names

MOE_NAMES = {
    **EXPERT_NAMES,
    "layers.{i}.mlp.gate.e_score_correction_bias": "layers.{i}.mlp.correction",
    **mlp_names("shared_experts", "shared"),
}


def mixture(reader: ConfigReader, has_experts: Iterable[bool] | None = None, scores: str = "sigmoid") -> dict[str, Any]:
    """Read the keys of experts. has_experts: the layers that have them, where no number of dense layers tells it."""
    groups, chosen_groups = reader.count("n_group"), reader.count("topk_group")
    if has_experts is None:
        dense = reader.count("first_k_dense_replace", minimum=0)
        has_experts = (layer >= dense for layer in range(reader.num_layers()))
    return {
        **routed_and_shared(reader, scores),
        "expert_layers": tuple(has_experts),
        "norm_top_k": reader.flag("norm_topk_prob"),
        "router_groups": (groups, chosen_groups, 2) if groups > 1 else None,
        "router_scale": reader.number("routed_scaling_factor"),
    }


def routed_and_shared(reader: ConfigReader, scores: str = "sigmoid") -> dict[str, Any]:
    """Read how many experts there are, and how wide they are."""
    width = reader.count("moe_intermediate_size")
    return {
        "num_experts": reader.count("n_routed_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_size": width,
        "shared_expert_size": width * reader.count("n_shared_experts"),
        "router_scores": scores,
        "router_correction": scores == "sigmoid",
    }


def read_moe_gguf(keys: GGUFKeys, config: dict[str, Any], gating: int = 2) -> dict[str, Any]:
    """Read the keys of experts. llama.cpp scores by softmax where no key says otherwise."""
    keys.expect("expert_gating_func", 1 if gating == 1 else ..., gating)  # 2: sigmoid
    groups = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
    width, shared = keys.expert_width(), keys.count("expert_shared_count")
    keys.expect("expert_shared_feed_forward_length", width * shared, 0)
    return config | {
        **keys.experts("n_routed_experts"),
        "moe_intermediate_size": width,
        "n_shared_experts": shared,
        "first_k_dense_replace": keys.count("leading_dense_block_count", 0, minimum=0),
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "routed_scaling_factor": keys.scale("expert_weights_scale"),
        **{name: keys.count(key, 1) for name, key in groups.items()},
    }


def moe_metadata(model: ModelConfig, pattern: int | None = None, gating: int = 2) -> dict[str, Any]:
    """Make the keys of experts, and of windows. pattern: of llama.cpp's, see window_metadata."""
    groups, chosen, _ = model.router_groups or (0, 0, 0)
    pairs = {
        "expert_shared_count": model.shared_expert_size // (model.expert_size or 1),
        "leading_dense_block_count": model.expert_layers.index(True) if True in model.expert_layers else 0,
        "expert_weights_scale": model.router_scale,
        "expert_weights_norm": model.norm_top_k,
        "expert_gating_func": gating,
    }
    pairs |= {"expert_group_count": groups, "expert_group_used_count": chosen} if groups else {}
    return expert_metadata(model) | pairs | window_metadata(model.windows, pattern)
