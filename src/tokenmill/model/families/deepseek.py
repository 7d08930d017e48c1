"""DeepSeek-V2 and V3 with Kimi K2, GLM-4.7-Flash, Mistral 4, Youtu-LLM and MiniCPM3: models with latent attention.

The matrices of each head's keys and values, which files have in one tensor, are read head by head; weights/heads.py
shows it so. Files whose rotated rows are neighbours are folded, as GLM's are.
"""

from dataclasses import replace
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.deepseek_gguf import IN_GGUF, MINICPM3_IN_GGUF, MISTRAL4_IN_GGUF
from tokenmill.model.families.llama import NAMES, PACKED_EXPERTS
from tokenmill.model.families.ministral3 import read_temperature
from tokenmill.model.families.mtp import BEHIND_LAYERS
from tokenmill.model.families.qwen_moe import mlp_names, sparse_layers
from tokenmill.model.families.sigmoid_experts import MOE_NAMES, mixture
from tokenmill.model.mixers.latent import latent_attention
from tokenmill.model.rope_config import read_rope, yarn_attention_factor
from tokenmill.value_reader import ValueReader

_LAYER, _FILE = "layers.{i}.latent.", "layers.{i}.self_attn."
LATENT_NAMES = {
    _FILE + "q_proj.weight": _LAYER + "down.weight:q | latent pairs of q",
    _FILE + "q_a_proj{p}": _LAYER + "down{p}:a",
    _FILE + "q_a_layernorm.weight": _LAYER + "q_norm.weight",
    _FILE + "q_b_proj.weight": _LAYER + "q_up.weight | latent pairs of q",
    _FILE + "kv_a_proj_with_mqa{p}": _LAYER + "down{p}:r | latent pairs of r",
    _FILE + "kv_a_layernorm.weight": _LAYER + "kv_norm.weight",
    _FILE + "kv_b_proj.weight[k{h}]": _LAYER + "keys.{h}.weight | transpose",
    _FILE + "kv_b_proj.weight[v{h}]": _LAYER + "values.{h}.weight",
    _FILE + "o_proj{p}": _LAYER + "out{p}",
}


def _with_latents(names: dict[str, str]) -> dict[str, str]:
    """Name the tensors of a model whose attention is latent, and otherwise like that of these names."""
    return {**{name: target for name, target in names.items() if ".self_attn." not in name}, **LATENT_NAMES}


def read_latents(reader: ConfigReader, pairs: bool, value: int | None = None, **more: Any) -> dict[str, Any]:
    """Read the keys of latent attention, the same in all layers. pairs: whether rotated rows are neighbours. more:
    fields of the block, a rope among them where it is not read here.
    """
    heads, hidden = reader.count("num_attention_heads"), reader.count("hidden_size")
    given = reader.count("num_key_value_heads", heads)
    if given != heads:
        raise reader.refuse("num_key_value_heads", given, f"{heads}, as many as heads: all of them share one row")
    plain, rotated = reader.count("qk_nope_head_dim"), reader.count("qk_rope_head_dim")
    rope = more.pop("rope") if "rope" in more else read_rope(reader, rotated, reader.context())
    block = latent_attention(
        hidden,
        heads,
        q_latent=reader.count("q_lora_rank", None),
        latent=reader.count("kv_lora_rank"),
        plain=plain,
        rope_dim=rotated,
        value=reader.count("v_head_dim", value),
        rope=rope,
        scale=(plain + rotated) ** -0.5 * _mscale(reader) ** 2,
        bias=reader.flag("attention_bias"),
        pairs=pairs,
        **more,
    )
    if block.down.bias and block.q_up is None:
        raise reader.refuse("attention_bias", True, "false where q_lora_rank is null")
    return {"mixers": (block,) * reader.num_layers(), "head_dim": plain + rotated, "num_kv_heads": heads, "rope": rope}


def _mscale(reader: ConfigReader) -> float:
    """Compute YaRN's factor on queries and on keys, which multiplies the scale of scores here."""
    given = reader.inside("rope_scaling").values or reader.inside("rope_parameters").values
    numbers = ValueReader(given, "config.json: rope parameters", CheckpointError)
    if numbers.text("rope_type", numbers.text("type", "default")) == "default":
        return 1.0
    weight = 0.0 if numbers.take("mscale_all_dim", 0) == 0 else numbers.number("mscale_all_dim")
    return yarn_attention_factor(numbers.number("factor", 1.0), weight) if weight else 1.0


def _v2(reader: ConfigReader) -> dict[str, Any]:
    dense, width = reader.count("first_k_dense_replace", minimum=0), reader.count("moe_intermediate_size")
    method = reader.expect("topk_method", "greedy", "group_limited_greedy")
    groups: int | None = reader.count("n_group", None)
    chosen: int | None = reader.count("topk_group", None)
    if method == "greedy":
        groups = None
    elif groups is None or chosen is None:
        raise reader.refuse("n_group" if groups is None else "topk_group", None, "a number, since groups are chosen")
    return {
        **read_latents(reader, pairs=True),
        "mlp_bias": reader.flag("mlp_bias"),
        "num_experts": reader.count("n_routed_experts"),
        "num_experts_per_token": reader.count("num_experts_per_tok"),
        "expert_layers": tuple(layer >= dense for layer in range(reader.num_layers())),
        "expert_size": width,
        "expert_bias": reader.flag("mlp_bias"),
        "shared_expert_size": width * reader.count("n_shared_experts"),
        "norm_top_k": False,
        "router_groups": (groups, chosen, 1) if groups and groups > 1 else None,
        "router_scale": reader.number("routed_scaling_factor"),
    }


def _v3(reader: ConfigReader) -> dict[str, Any]:
    return {**mixture(reader), **read_latents(reader, reader.flag("rope_interleave")), "norm_top_k_eps": 1e-20}


def mixture_of_kinds(reader: ConfigReader, dense: int) -> dict[str, Any]:
    """Read the keys of experts, and which layers have them: as a list says, or all but the first `dense` ones."""
    return mixture(reader, sparse_layers(reader, dense)) | {"norm_top_k_eps": 1e-20}


def _glm4_moe_lite(reader: ConfigReader) -> dict[str, Any]:
    return {**mixture_of_kinds(reader, 1), **read_latents(reader, reader.flag("rope_interleave"))}


def _mistral4(reader: ConfigReader) -> dict[str, Any]:
    plain, rotated = reader.count("qk_nope_head_dim"), reader.count("qk_rope_head_dim")
    reader.defaults = {**reader.defaults, "partial_rotary_factor": rotated / (plain + rotated)}
    temperature = read_temperature(reader, _MISTRAL4_ROPE)
    rope = read_rope(reader, plain + rotated, reader.context())
    if rope.dim != rotated:
        raise reader.refuse(
            "partial_rotary_factor", rope.dim / (plain + rotated), f"the part of {rotated} entries that are rotated"
        )
    latents = read_latents(reader, reader.flag("rope_interleave"), rope=rope, temperature=temperature)
    return {**mixture(reader, scores="softmax"), **latents}


def _youtu(reader: ConfigReader) -> dict[str, Any]:
    return read_latents(reader, reader.flag("rope_interleave"))


def _minicpm3(reader: ConfigReader) -> dict[str, Any]:
    hidden, layers = reader.count("hidden_size"), reader.num_layers()
    depth, base = reader.number("scale_depth", layers**0.5), reader.count("dim_model_base", hidden)
    return {
        **read_latents(reader, pairs=False, value=reader.split_hidden()),
        "mlp_bias": reader.flag("mlp_bias"),
        "embedding_multiplier": reader.number("scale_emb"),
        "residual_multiplier": depth / layers**0.5,
        "logit_multiplier": base / hidden,
    }


_MISTRAL4_ROPE = {
    "type": "yarn",
    "rope_theta": 10000.0,
    "factor": 128.0,
    "original_max_position_embeddings": 8192,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def _dims(q: int | None, latent: int, plain: int, value: int | None) -> dict[str, Any]:
    names = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return dict(zip(names, (q, latent, plain, 64, value), strict=True)) | {"head_dim": None}


_EXPERTS = {"n_shared_experts": 1, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": True}
_ALIASES = {"num_local_experts": "n_routed_experts", "num_mtp_layers": "num_nextn_predict_layers"}
_DERIVED = ("head_dim", "qk_head_dim")  # which the classes compute anew
_MTP = ("num_nextn_predict_layers",)
_TRAINING = ("aux_loss_alpha", "ep_size", "seq_aux")  # of the balance of experts
_KV = {"num_key_value_heads": None, "q_lora_rank": None}
DEEPSEEK_V2 = Family(
    _with_latents({**MOE_NAMES, **mlp_names("shared_experts", "shared")}),
    _v2,
    defaults={
        **sizes(102400, 4096, 11008, 32, 32),
        **_EXPERTS,
        **_dims(1536, 512, 128, 128),
        "first_k_dense_replace": 0,
        "moe_intermediate_size": 1407,
        "n_group": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": None,
        "norm_topk_prob": False,
        "num_key_value_heads": None,
        "routed_scaling_factor": 1.0,
        "topk_group": None,
    },
    nulls={**_KV, "norm_topk_prob": False},
    aliases={"num_experts": "n_routed_experts"},
    expected={"moe_layer_freq": 1, "scoring_func": "softmax", "norm_topk_prob": False},
    harmless=(*_DERIVED, *_TRAINING),
    gguf=IN_GGUF,
    also=PACKED_EXPERTS,
)
DEEPSEEK_V3 = Family(
    _with_latents(MOE_NAMES),
    _v3,
    defaults={
        **sizes(129280, 7168, 18432, 61, 128, 128, context=4096),
        **_EXPERTS,
        **_dims(1536, 512, 128, 128),
        "eos_token_id": 1,
        "first_k_dense_replace": 3,
        "moe_intermediate_size": 2048,
        "n_group": 8,
        "n_routed_experts": 256,
        "rope_interleave": True,
        "routed_scaling_factor": 2.5,
        "topk_group": 4,
    },
    nulls={**_KV, "norm_topk_prob": False, "rope_interleave": False},
    aliases=_ALIASES,
    expected={"moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
    harmless=(*_DERIVED, *_MTP, *_TRAINING),
    further=("layers.{n}.",),
    mtp=BEHIND_LAYERS,
    gguf=IN_GGUF,
    also=PACKED_EXPERTS,
)
GLM4_MOE_LITE = replace(
    DEEPSEEK_V3,
    read=_glm4_moe_lite,
    defaults={
        **sizes(154880, 2048, 10240, 47, 20, 20, context=202752),
        **_EXPERTS,
        **_dims(768, 512, 192, 256),
        "eos_token_id": 1,
        "mlp_layer_types": None,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 64,
        "num_experts_per_tok": 4,
        "rms_norm_eps": 1e-5,
        "rope_interleave": True,
        "routed_scaling_factor": 1.8,
    },
    nulls={"q_lora_rank": None},
    expected={**DEEPSEEK_V3.expected, "first_k_dense_replace": 1},
    aliases={"num_local_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    harmless=("qk_head_dim", *_MTP, *_TRAINING),
)
_STACKED = {name: to for name, to in DEEPSEEK_V3.names.items() if "correction" not in to and "{e}" not in name}
MISTRAL4 = replace(
    DEEPSEEK_V3,
    names={**_STACKED, **PACKED_EXPERTS},
    also={},
    read=_mistral4,
    defaults={
        **sizes(131072, 4096, 12288, 36, 32, 32, context=1048576),
        **_EXPERTS,
        **_dims(1024, 256, 64, 128),
        "first_k_dense_replace": 0,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 128,
        "num_experts_per_tok": 4,
        "partial_rotary_factor": 1.0,
        "rope_interleave": True,
        "routed_scaling_factor": 1.0,
    },
    aliases={"num_local_experts": "n_routed_experts"},
    expected={},
    harmless=_DERIVED,
    further=(),
    mtp=None,
    gguf=MISTRAL4_IN_GGUF,
)
YOUTU = Family(
    _with_latents(NAMES),
    _youtu,
    defaults={
        **sizes(128256, 2048, 6144, 32, 16, 16, context=131072),
        **_dims(1536, 512, 128, 128),
        "eos_token_id": 128001,
        "rope_interleave": True,
        "tie_word_embeddings": True,
    },
    nulls={"q_lora_rank": None, "rope_interleave": False},
    harmless=(*_DERIVED, "embedding_initializer_range"),
    gguf=IN_GGUF,
)
MINICPM3 = Family(
    _with_latents(NAMES),
    _minicpm3,
    defaults={
        **sizes(73448, 2560, 6400, 62, 40, 40, context=32768),
        **_dims(768, 256, 64, None),
        "dim_model_base": 256,
        "qk_rope_head_dim": 32,
        "rms_norm_eps": 1e-5,
        "scale_depth": 1.4,
        "scale_emb": 12,
        "tie_word_embeddings": True,
    },
    nulls={**_KV, "dim_model_base": None, "scale_depth": None},
    harmless=_DERIVED,
    gguf=MINICPM3_IN_GGUF,
)
# transformers 5.24 writes the name of the layers of its vision tower for all layers.
_AS_BLOCKS = {f"blocks{name.removeprefix('layers')}": to for name, to in DEEPSEEK_V3.names.items() if "{i}" in name}
KIMI_K25 = replace(
    DEEPSEEK_V3,
    also={**PACKED_EXPERTS, **_AS_BLOCKS},
    text=InnerTextModel(
        ("deepseek_v3", "kimi_k2"),
        ignored=(
            "vision_config", "projection_hidden_size", "projection_layer_norm_eps", "image_token_id", "video_token_id",
            "vision_start_token_id", "vision_end_token_id", "ignore_index", "media_placeholder_token_id",
            "use_unified_vision_chunk", "video_placeholder",
        ),
        read_as="deepseek_v3",
    ),
)  # fmt: skip
