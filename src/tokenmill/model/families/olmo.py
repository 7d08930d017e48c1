"""OLMo, OLMo 2, OLMo 3 and OLMoE of Ai2.

OLMo has a LayerNorm without weights. OLMo 2 has its norms behind attention and MLP, and norms of Q and K over all heads
of a token, as OLMoE has; OLMoE is otherwise a Llama with experts. OLMo 3 is OLMo 2 with a window in three of four
layers, and a rope for each of the two kinds of layers.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.described import plain_attention
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama, paired, window_metadata
from tokenmill.model.families.llama import NAMES, PACKED_EXPERTS
from tokenmill.model.families.qwen_moe import EXPERT_NAMES
from tokenmill.model.rope_config import Beside, rope_of
from tokenmill.model.ropes_by_kind import local_rope, read_ropes

AFTER_NAMES = {
    **{name: target for name, target in NAMES.items() if "layernorm" not in name},
    "layers.{i}.post_attention_layernorm.weight": "layers.{i}.attention_after_norm.weight",
    "layers.{i}.post_feedforward_layernorm.weight": "layers.{i}.mlp_after_norm.weight",
}


_ROPES = {
    "full_attention": Beside("rope_theta", 5e5, scaled=True),
    "sliding_attention": Beside("rope_theta", 5e5, scaled=False),
}


def _olmo(reader: ConfigReader) -> dict[str, Any]:
    clip, rope = reader.number("clip_qkv", None), rope_of(reader)
    bounded = () if clip is None else (plain_attention(reader, rope, clip),) * reader.num_layers()
    return {
        **reader.attention_bias(),
        "rope": rope,
        "mixers": bounded,
        "norm": "layer",
        "norm_weight": False,
        "norm_eps": 1e-5,  # which no key has
    }


def _olmo2(reader: ConfigReader) -> dict[str, Any]:
    return {**reader.attention_bias(), "norm_placement": "after", "norm_rounds_last": True, "qk_norm": QKNorm("all")}


def _olmo3(reader: ConfigReader) -> dict[str, Any]:
    layers, window = range(reader.num_layers()), reader.window()
    default = ["sliding_attention" if (layer + 1) % 4 else "full_attention" for layer in layers]
    types = reader.layer_types(default, "full_attention", "sliding_attention")
    reader.expect("rope_theta", 5e5)  # another one beside the parameters holds for one kind of layers in transformers
    ropes = read_ropes(reader, _ROPES)
    return {
        **_olmo2(reader),
        "windows": tuple(window if kind == "sliding_attention" else None for kind in types),
        "rope": ropes["full_attention"],
        "ropes": tuple(ropes[kind] for kind in types),
    }


def _olmoe(reader: ConfigReader) -> dict[str, Any]:
    return {
        **reader.attention_bias(),
        "qk_norm": QKNorm("all"),
        "num_experts": reader.count("num_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "norm_top_k": reader.flag("norm_topk_prob"),
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    config = like_llama(keys, eps="layer_norm_eps") | has_bias(keys)
    if (epsilon := config.pop("layer_norm_eps")) != 1e-5:
        raise keys.refuse("attention.layer_norm_epsilon", epsilon, "only 1e-05 is implemented, as in transformers")
    bound = keys.scale("attention.clamp_kqv", 0.0)
    return config | ({"clip_qkv": bound} if bound else {})


def _olmo_metadata(model: ModelConfig) -> dict[str, Any]:
    return {"attention.clamp_kqv": model.mixers[0].qkv.clip} if model.mixers else {}


def _read_later_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read OLMo 2, or with a window OLMo 3, whose layers with a window have a plain rope of the same base."""
    config = like_llama(keys) | has_bias(keys)
    window = keys.window()
    if window is None:
        return config
    theta = config.pop("rope_theta")
    if keys.positive("rope.freq_base_swa", theta) != theta:
        raise keys.refuse("rope.freq_base_swa", keys.take("rope.freq_base_swa"), f"only {theta}, as of the others")
    plain = {"rope_type": "default", "rope_theta": theta}
    return config | {
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": keys.layer_types(config["num_hidden_layers"], 4),
        "rope_parameters": {"full_attention": plain, "sliding_attention": plain},
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    local = local_rope(model)
    pairs = {} if local is None else {"rope.freq_base_swa": local.theta}
    return pairs | window_metadata(model.windows)


def _read_olmoe_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.softmax_routing(False)
    config = like_llama(keys) | has_bias(keys) | keys.experts("num_experts")
    return config | {"intermediate_size": keys.expert_width(), "norm_topk_prob": False}


_LATER = InGGUF(
    "olmo2",
    read=_read_later_gguf,
    metadata=_metadata,
    needs=("own head", "no o_bias", "square"),
    windows=lambda _: True,
)
_DEFAULTS = {"eos_token_id": 50279, "vocab_size": 50304}
_LATER_DEFAULTS = {**_DEFAULTS, "rms_norm_eps": 1e-5}
OLMO = Family(
    NAMES,
    _olmo,
    defaults=_DEFAULTS,
    gguf=InGGUF("olmo", paired(), _read_gguf, _olmo_metadata, needs=("no o_bias", "square")),
)
OLMO2 = Family(AFTER_NAMES, _olmo2, defaults=_LATER_DEFAULTS, gguf=_LATER)
OLMO3 = Family(
    AFTER_NAMES, _olmo3, defaults={**_LATER_DEFAULTS, "rope_theta": 5e5, "sliding_window": 4096}, gguf=_LATER
)
OLMOE = Family(
    EXPERT_NAMES,
    _olmoe,
    defaults={
        **_LATER_DEFAULTS,
        **sizes(50304, 2048, 2048, 16, 16, context=4096),
        "norm_topk_prob": False,
        "num_experts": 64,
        "num_experts_per_tok": 8,
    },
    aliases={"num_local_experts": "num_experts"},
    expected={"clip_qkv": None},
    gguf=InGGUF("olmoe", read=_read_olmoe_gguf, needs=("own head", "no o_bias", "square", "no groups")),
    also=PACKED_EXPERTS,
)
