"""GPT-NeoX: Pythia, GPT-NeoX-20B, Dolly. Attention and MLP read the same input; a part of each head is rotated."""

from typing import Any

from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, fused_qkv, plain_mlp

_LAYER = "gpt_neox.layers.{i}."
_NAMES = {
    "gpt_neox.embed_in.weight": "embedding.weight",
    _LAYER + "input_layernorm{p}": "layers.{i}.attention_norm{p}",
    _LAYER + "attention.query_key_value{p}": "layers.{i}.attention.qkv{p} | heads_to_qkv",
    _LAYER + "attention.dense{p}": "layers.{i}.attention.out{p}",
    _LAYER + "post_attention_layernorm{p}": "layers.{i}.mlp_norm{p}",
    _LAYER + "mlp.dense_h_to_4h{p}": "layers.{i}.mlp.up{p}",
    _LAYER + "mlp.dense_4h_to_h{p}": "layers.{i}.mlp.down{p}",
    "gpt_neox.final_layer_norm{p}": "norm{p}",
    "embed_out.weight": "head.weight",
}


def _gpt_neox(reader: ConfigReader) -> dict[str, Any]:
    part = "partial_rotary_factor"
    if reader.values.get(part) in (reader.number(part), reader.inside("rope_parameters").values.get(part)):
        reader.read.add(part)  # another family's name, under which the same may stand once more
    return {
        "num_kv_heads": reader.count("num_attention_heads"),
        "head_dim": reader.split_hidden(),
        "norm": "layer",
        "gated_mlp": False,
        "residual": "parallel" if reader.flag("use_parallel_residual") else "serial",
        **reader.attention_bias(),
        "mlp_bias": True,
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    sizes = keys.sizes()
    heads = sizes["num_attention_heads"]
    keys.expect("attention.head_count_kv", heads)
    head_dim = sizes["hidden_size"] // heads
    keys.count("rope.dimension_count")  # required
    keys.expect_head_dim(head_dim)
    return {
        "model_type": keys.family,
        **sizes,
        "hidden_act": "gelu",
        "layer_norm_eps": keys.positive("attention.layer_norm_epsilon"),
        "rotary_pct": keys.rotated_part(head_dim),
        "rotary_emb_base": keys.positive("rope.freq_base", 10000.0),
        "use_parallel_residual": keys.expect("use_parallel_residual", True, False),
        "attention_bias": "blk.0.attn_qkv.bias" in keys.tensors,
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    return {"use_parallel_residual": model.residual == "parallel"}


GPT_NEOX = Family(
    _NAMES,
    _gpt_neox,
    keys={"rms_norm_eps": "layer_norm_eps", "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
    defaults={
        **sizes(50432, 6144, 24576, 44, 64),
        "attention_bias": True,
        "hidden_act": "gelu",
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-5,
        "use_parallel_residual": True,
    },
    harmless=("rope_theta",),  # written beside rotary_emb_base, which is the one that counts
    prefix="",
    # Buffers that old checkpoints carry: the causal mask and the rotary frequencies.
    ignored=tuple(_LAYER + f"attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")),
    gguf=InGGUF("gptneox", fused_qkv(plain_mlp()), _read_gguf, _metadata, needs=("biases",)),
    also={"lm_head.weight": "head.weight"},
)
