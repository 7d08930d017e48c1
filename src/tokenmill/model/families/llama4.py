"""Llama 4 of Meta: layers with RoPE, whose Q and K are normed after it, and every fourth one without, whose queries
grow with their position; experts whose weights multiply their inputs, beside a shared one.

Layers with RoPE attend within chunks of `attention_chunk_size` tokens. Within the first chunk that is plain attention,
so that a chunk is the longest text here. Neighbouring entries of a head rotate, which is folded into the rows of Q and
K. A checkpoint sees, too; of it the text part is read.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig, Rope
from tokenmill.model.description import MlpBlock
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.described import gated_mlp, plain_attention
from tokenmill.model.families.glm import PAIRED_NAMES
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama, paired
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.mixture import ExpertsBlock
from tokenmill.model.rope_config import read_rope
from tokenmill.value_reader import MAX_POSITIONS

FULL, CHUNKED = "full_attention", "chunked_attention"
_FILE, _OURS = "layers.{i}.feed_forward.", "layers.{i}.mlp."


def _mlp(file: str, ours: str) -> dict[str, str]:
    parts = {"gate_proj": "up.weight:gate", "up_proj": "up.weight:up", "down_proj": "down.weight"}
    return {f"{_FILE}{file}{name}.weight": f"{_OURS}{ours}{target}" for name, target in parts.items()}


_NAMES = {
    **{name: target for name, target in PAIRED_NAMES.items() if ".mlp." not in name and "_norm.w" not in name},
    **_mlp("", ""),
    **_mlp("shared_expert.", "shared."),
    _FILE + "router.weight": _OURS + "router.weight",
    _FILE + "experts.gate_up_proj[{e}]": _OURS + "experts.{e}.up.weight | transpose",
    _FILE + "experts.down_proj[{e}]": _OURS + "experts.{e}.down.weight | transpose",
}


def _llama4(reader: ConfigReader) -> dict[str, Any]:
    layers, context = range(reader.num_layers()), reader.context()
    rotated, chunked = _rotated(reader), _chunked(reader)
    rope = read_rope(reader, reader.head_dim(), context)
    mlps = _mlps(reader)
    experts = next((block for block in mlps if isinstance(block, ExpertsBlock)), None)
    chosen = {} if experts is None else {"num_experts": experts.num, "num_experts_per_token": experts.chosen}
    return {
        **chosen,
        **reader.attention_bias(),
        "max_position_embeddings": context if chunked is None else min(context, chunked),
        "intermediate_size": reader.count("intermediate_size_mlp"),
        "expert_size": reader.count("intermediate_size"),
        "expert_layers": tuple(isinstance(block, ExpertsBlock) for block in mlps),
        "mlps": mlps,
        "rope": rope,
        "mixers": tuple(_attention(reader, rope if rotated[layer] else None) for layer in layers),
    }


def _rotated(reader: ConfigReader) -> list[bool]:
    """Read which layers have RoPE."""
    layers, every = reader.num_layers(), reader.count("no_rope_layer_interval", maximum=MAX_LAYERS)
    usual = [int((layer + 1) % every != 0) for layer in range(layers)]
    given = reader.entries("no_rope_layers", int, usual) or usual
    if len(given) < layers or set(given) - {0, 1}:
        raise reader.refuse("no_rope_layers", given, f"1, or 0 for no RoPE, for each of {layers} layers")
    return [bool(each) for each in given[:layers]]


def _chunked(reader: ConfigReader) -> int | None:
    """Read the length of chunks; None where no layer attends within chunks."""
    size = reader.count("attention_chunk_size", None, maximum=MAX_POSITIONS)
    usual = [CHUNKED if each and size is not None else FULL for each in _rotated(reader)]
    types = reader.layer_types(usual, FULL, CHUNKED)
    if size is None and CHUNKED in types:
        raise reader.refuse("attention_chunk_size", None, f"a number of tokens, as layer_types has {CHUNKED}")
    return size if CHUNKED in types else None


def _attention(reader: ConfigReader, rope: Rope | None) -> AttentionBlock:
    """Describe the attention of a layer, with RoPE or without."""
    is_normed, grows = reader.flag("use_qk_norm"), reader.flag("attn_temperature_tuning")
    beta, length = reader.number("attn_scale"), reader.count("floor_scale", maximum=MAX_POSITIONS)
    norm = Norm(reader.head_dim(), "rms", reader.number("rms_norm_eps", maximum=1.0), weight=False)
    return plain_attention(
        reader,
        rope,
        qk_norms=(norm, norm) if is_normed and rope is not None else (),
        norms_after_rope=True,
        temperature=(beta, length, 1) if grows and rope is None else None,
    )


def _mlps(reader: ConfigReader) -> tuple[MlpBlock | ExpertsBlock, ...]:
    """Describe the MLP or the experts of each layer."""
    layers, step = reader.num_layers(), reader.count("interleave_moe_layer_step", maximum=MAX_LAYERS)
    given = reader.entries("moe_layers", int, list(range(step - 1, layers, step)))
    hidden, activation = reader.count("hidden_size"), reader.text("hidden_act")

    dense, expert = (
        gated_mlp(hidden, reader.count(key), activation) for key in ("intermediate_size_mlp", "intermediate_size")
    )
    num, chosen = reader.count("num_local_experts"), reader.count("num_experts_per_tok")
    mixture = ExpertsBlock(
        Projection("router", hidden, (num,)),
        expert,
        num,
        chosen,
        normalise=False,
        scores="sigmoid",
        shared=expert,
        on_inputs=True,
    )
    return tuple(mixture if layer in given else dense for layer in range(layers))


# In llama.cpp's code, not in files.
_FIXED = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layer_interval": 4}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read Llama 4. Q and K are normed in all models but the one with 128 experts."""
    keys.expect("attention.sliding_window", 8192)
    keys.expect("expert_gating_func", 2, 0)
    keys.expect("expert_weights_norm", False)
    keys.expect("expert_weights_scale", 1.0, 0.0)
    keys.expect("expert_shared_count", 1, 0)
    config, width, experts = like_llama(keys), keys.expert_width(), keys.experts()
    keys.expect("expert_shared_feed_forward_length", width, 0)
    return config | {
        **experts,
        **_FIXED,
        "intermediate_size_mlp": config["intermediate_size"],
        "intermediate_size": width,
        "interleave_moe_layer_step": keys.count("interleave_moe_layer_step", maximum=MAX_LAYERS),
        "use_qk_norm": experts["num_local_experts"] != 128,
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    step = model.expert_layers.index(True) + 1 if True in model.expert_layers else model.num_layers + 1
    return {"expert_feed_forward_length": model.expert_size, "interleave_moe_layer_step": step}


LLAMA4_TEXT = Family(
    _NAMES,
    _llama4,
    defaults={
        **sizes(202048, 5120, 8192, 48, 40, 8, head_dim=128, context=131072),
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "interleave_moe_layer_step": 1,
        "intermediate_size_mlp": 16384,
        "no_rope_layer_interval": 4,
        "num_experts_per_tok": 1,
        "num_local_experts": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "use_qk_norm": True,
    },
    nulls={"attention_chunk_size": None},
    harmless=("cache_implementation", "for_llm_compressor"),  # choices of transformers and of a tool
    gguf=InGGUF("llama4", paired(), _read_gguf, _metadata, needs=("no o_bias",), windows=lambda _: True),
)
_TOKENS = tuple(f"{name}_token_{kind}" for name in ("boi", "eoi", "image") for kind in ("index", "id"))
LLAMA4 = replace(
    LLAMA4_TEXT, gguf=None, text=InnerTextModel(("llama4_text",), ignored=("vision_config", *_TOKENS), tied=False)
)
