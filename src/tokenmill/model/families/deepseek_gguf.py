"""llama.cpp's files of models with latent attention: its architecture deepseek2, whose heads of keys and values are
divided and whose keys are transposed, as they are multiplied; and mistral4, which is the same there with queries that
grow with their position. minicpm3 has the matrices of keys and values of all heads in one tensor.

Rotated rows are neighbours there. The epsilon of all norms is one number; the norms of latent vectors have 1e-6 here,
as in transformers, whatever the file says.
"""

import math
from dataclasses import replace
from typing import Any

from tokenmill.model.config import ModelConfig
from tokenmill.model.families.hybrids import count_blocks
from tokenmill.model.families.in_gguf import NAMES, GGUFKeys, InGGUF
from tokenmill.model.families.long_rope_gguf import LISTS, long_rope_metadata, read_long_rope
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.families.sigmoid_experts import moe_metadata, read_moe_gguf
from tokenmill.model.mixers.latent import LatentBlock
from tokenmill.value_reader import MAX_POSITIONS

_BLOCK, _LAYER = "blk.{i}.", "layers.{i}.latent."
LATENT_NAMES = {
    _BLOCK + "attn_q.weight": _LAYER + "down.weight:q | latent pairs of q",
    _BLOCK + "attn_q_a.weight": _LAYER + "down.weight:a",
    _BLOCK + "attn_q_a_norm.weight": _LAYER + "q_norm.weight",
    _BLOCK + "attn_q_b.weight": _LAYER + "q_up.weight | latent pairs of q",
    _BLOCK + "attn_kv_a_mqa.weight": _LAYER + "down.weight:r | latent pairs of r",
    _BLOCK + "attn_kv_a_norm.weight": _LAYER + "kv_norm.weight",
    _BLOCK + "attn_k_b.weight[{h}]": _LAYER + "keys.{h}.weight",
    _BLOCK + "attn_v_b.weight[{h}]": _LAYER + "values.{h}.weight",
    _BLOCK + "attn_output.weight": _LAYER + "out.weight",
}
_EXPANDED = {  # the matrices of all heads in one tensor, a head's keys before its values
    _BLOCK + "attn_kv_b.weight[k{h}]": _LAYER + "keys.{h}.weight | transpose",
    _BLOCK + "attn_kv_b.weight[v{h}]": _LAYER + "values.{h}.weight",
}
OTHER_NAMES = {name: target for name, target in NAMES.items() if ".attention." not in target}
_STRETCH = "rope.scaling.yarn_log_multiplier"  # 0.1 · mscale_all_dim
_GROWTH, _LENGTH = "attention.temperature_scale", "attention.temperature_length"
_TRAINED = "rope.scaling.original_context_length"


def read_latent(keys: GGUFKeys) -> dict[str, Any]:
    """Read the widths of latent attention, whose heads share one row, which is a head of K there. In files from before
    April 2025 heads have keys and values of their own.
    """
    ranks = {"q_lora_rank": keys.count("attention.q_lora_rank", 0, minimum=0) or None}
    if keys.take("attention.key_length_mla", None) is None:
        keys.expect("attention.head_count_kv", keys.count("attention.head_count"))
        widths = (keys.count(f"attention.{of}_length") for of in ("key", "value"))
        return ranks | _widths(keys, *widths)
    latent, rotated = keys.count("attention.kv_lora_rank"), keys.count("rope.dimension_count")
    keys.expect("attention.head_count_kv", 1)
    keys.expect("attention.key_length", latent + rotated)
    keys.take("attention.value_length", latent)  # of rows, whose rest is not read
    return ranks | _widths(keys, *(keys.count(f"attention.{of}_length_mla") for of in ("key", "value")))


def _widths(keys: GGUFKeys, width: int, value: int) -> dict[str, Any]:
    """Name the widths of latent attention by keys of config.json. width: of a head's query. value: of its value."""
    rotated = keys.count("rope.dimension_count", maximum=max(width - 1, 1))
    return {
        "num_key_value_heads": keys.count("attention.head_count"),
        "kv_lora_rank": keys.count("attention.kv_lora_rank"),
        "qk_nope_head_dim": width - rotated,
        "qk_rope_head_dim": rotated,
        "v_head_dim": value,
        "hidden_act": "silu",
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
    }


def _read(keys: GGUFKeys) -> dict[str, Any]:
    """Read the keys of DeepSeek-V2, of V3 where experts have sigmoid scores, of Mistral 4 where queries grow, or of
    Youtu-LLM, which has no experts.
    """
    config: dict[str, Any] = keys.sizes() | read_latent(keys)
    config["num_hidden_layers"], _ = count_blocks(keys)
    keys.rotary(config["qk_rope_head_dim"])
    config |= {"model_type": "youtu", "rope_theta": keys.positive("rope.freq_base", 10000.0)}
    if keys.take(_STRETCH, 0.0):
        weight = 10 * keys.positive(_STRETCH)
        config["rope_scaling"] = {"mscale": weight, "mscale_all_dim": weight}
    if keys.family == "mistral4" or keys.take(_GROWTH, 0.0):
        return _mistral4(keys, config)
    if not keys.count("expert_count", 0, minimum=0):
        keys.expect("leading_dense_block_count", config["num_hidden_layers"])
        keys.expect("expert_feed_forward_length", config["intermediate_size"])  # llama.cpp wants them
        keys.expect("expert_shared_count", 0)
        return config
    is_sigmoid = keys.take("expert_gating_func", 1) == 2
    config = read_moe_gguf(keys, config, gating=2 if is_sigmoid else 1)
    if is_sigmoid:
        return config | {"model_type": "deepseek_v3"}
    return config | {"model_type": "deepseek_v2", "topk_method": "greedy"}


def _mistral4(keys: GGUFKeys, config: dict[str, Any]) -> dict[str, Any]:
    """Read what Mistral 4 has in other words: queries grow by the length that YaRN was trained on."""
    keys.expect("rope.scaling.type", ..., "yarn")
    trained, growth = keys.count(_TRAINED, maximum=MAX_POSITIONS), keys.take(_GROWTH, None)
    if growth:
        growth = keys.positive(_GROWTH)
        keys.expect(_LENGTH, ..., trained)
    elif growth is None:  # as llama.cpp's converter of Hugging Face's directories leaves it
        told = "no %s: queries do not grow after position %d, as in llama.cpp; in Mistral's own files they do"
        keys.warn(f"%s has {told}", keys.where, _GROWTH, trained)
    scaling = {**config.get("rope_scaling", {}), "llama_4_scaling_beta": growth or 0}
    return read_moe_gguf(keys, config, gating=1) | {"model_type": "mistral4", "rope_scaling": scaling}


def latent_metadata(block: LatentBlock) -> dict[str, Any]:
    """Make the keys of these widths."""
    return _rank_metadata(block) | {
        "attention.head_count_kv": 1,
        "attention.key_length": block.row_dim,
        "attention.value_length": block.latent_dim,
        "attention.key_length_mla": block.query_dim,
        "attention.value_length_mla": block.value.outputs,
        "rope.dimension_count": block.rope_dim,
    }


def _rank_metadata(block: LatentBlock) -> dict[str, Any]:
    q = {} if block.q_up is None else {"attention.q_lora_rank": block.q_up.inputs}
    return {"attention.kv_lora_rank": block.latent_dim, **q}


def _metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, LatentBlock)
    assert block is not None, "its attention is latent"
    pairs = latent_metadata(block) | _stretch(block)
    if not model.num_experts:
        dense = {"leading_dense_block_count": model.num_layers, "expert_feed_forward_length": model.intermediate_size}
        return pairs | dense | {"expert_shared_count": 0}
    return pairs | moe_metadata(model, gating=2 if model.router_scores == "sigmoid" else 1)


def _mistral4_metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, LatentBlock)
    growth, length = (block and block.temperature) or (0.0, 0)
    return _metadata(model) | {_GROWTH: growth, _LENGTH: length}


def _read_minicpm3(keys: GGUFKeys) -> dict[str, Any]:
    """Read MiniCPM3, whose multipliers llama.cpp has in its code. Heads have keys and values of their own there."""
    config: dict[str, Any] = keys.sizes()
    heads = config["num_attention_heads"]
    keys.expect("attention.head_count_kv", heads)
    value = keys.count("attention.value_length", config["hidden_size"] // heads)
    config |= _widths(keys, keys.count("attention.key_length"), value)
    keys.rotary(config["qk_rope_head_dim"])
    config |= {"model_type": "minicpm3", "q_lora_rank": keys.count("attention.q_lora_rank")}
    config |= {"rope_theta": keys.positive("rope.freq_base", 10000.0)}
    rope = read_long_rope(keys, config)
    config |= {"rope_parameters": rope} if rope else {}
    return config | {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}


def _minicpm3_metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, LatentBlock)
    assert block is not None, "its attention is latent"
    widths = {"attention.key_length": block.query_dim, "attention.value_length": block.value.outputs}
    return _rank_metadata(block) | widths | long_rope_metadata(model)


def _stretch(block: LatentBlock) -> dict[str, float]:
    """Make the key of YaRN's factor on queries and keys, of which the scale of scores has the square."""
    factor = math.sqrt(block.shape.scale * block.query_dim**0.5)
    numbers = {} if block.rope is None else dict(block.rope.scaling)
    if math.isclose(factor, 1.0):
        return {}
    return {_STRETCH: (factor - 1) / math.log(numbers["factor"])}


IN_GGUF = InGGUF(
    "deepseek2",
    {**OTHER_NAMES, **LATENT_NAMES},
    _read,
    _metadata,
    needs=("no state bias",),
    yarn=("attention_factor",),
    further=True,
    older=_EXPANDED,
)
MISTRAL4_IN_GGUF = replace(IN_GGUF, architecture="mistral4", metadata=_mistral4_metadata, further=False)
MINICPM3_IN_GGUF = InGGUF(
    "minicpm3",
    {**OTHER_NAMES, **{name: to for name, to in LATENT_NAMES.items() if "[" not in name}, **_EXPANDED},
    _read_minicpm3,
    _minicpm3_metadata,
    ignored=LISTS,
    needs=("no state bias", "no mlp_bias"),
)
