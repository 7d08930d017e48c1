"""GPT-2, and GPT-BigCode (SantaCoder, StarCoder): learned positions, LayerNorm, a plain MLP.

GPT-2 stores its matrices [in, out]. GPT-BigCode stores them [out, in] and has multi-query attention.
"""

from dataclasses import replace
from typing import Any

from tokenmill.model.config import ConfigReader
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, fused_qkv, plain_mlp

_NAMES = {
    "wte.weight": "embedding.weight",
    "wpe.weight": "position_embedding.weight",
    "h.{i}.ln_1{p}": "layers.{i}.attention_norm{p}",
    "h.{i}.attn.c_attn{p}": "layers.{i}.attention.qkv{p} | transpose",
    "h.{i}.attn.c_proj{p}": "layers.{i}.attention.out{p} | transpose",
    "h.{i}.ln_2{p}": "layers.{i}.mlp_norm{p}",
    "h.{i}.mlp.c_fc{p}": "layers.{i}.mlp.up{p} | transpose",
    "h.{i}.mlp.c_proj{p}": "layers.{i}.mlp.down{p} | transpose",
    "ln_f{p}": "norm{p}",
    "lm_head.weight": "head.weight",
}
_BIGCODE_NAMES = {
    **{name: target.removesuffix(" | transpose") for name, target in _NAMES.items()},
    "h.{i}.attn.c_attn{p}": "layers.{i}.attention.qkv{p} | bigcode_qkv",
}


def _shared(reader: ConfigReader) -> dict[str, Any]:
    return {
        "num_kv_heads": reader.count("num_attention_heads"),
        "head_dim": reader.split_hidden(),
        "intermediate_size": reader.count("intermediate_size", 4 * reader.count("hidden_size")),
        "norm": "layer",
        "gated_mlp": False,
        "positions": "learned",
        "rope": None,
        **dict.fromkeys(("qkv_bias", "o_bias", "mlp_bias"), True),
        "attention_scale": None if reader.flag("scale_attn_weights") else 1.0,
    }


def _gpt2(reader: ConfigReader) -> dict[str, Any]:
    reader.expect("scale_attn_by_inverse_layer_idx", False)
    reader.flag("reorder_and_upcast_attn", False)  # a choice of precision: scores are float32 here
    return _shared(reader)


_PRECISIONS = ("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32")


def _gpt_bigcode(reader: ConfigReader) -> dict[str, Any]:
    for key in _PRECISIONS:
        reader.flag(key)  # choices of precision, too
    return _shared(reader) | ({"num_kv_heads": 1} if reader.flag("multi_query") else {})


_SIZES = {
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "context_length": "n_positions",
}


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    keys.take("feed_forward_length", None)  # llama.cpp writes four times the width, whatever it is
    for key in [key for key in keys.values if key.startswith(f"{keys.prefix}rope.")]:
        keys.take(key.removeprefix(keys.prefix))  # positions are learned
    config: dict[str, Any] = {
        **keys.sizes(_SIZES),
        "n_inner": keys.rows("blk.0.ffn_up.weight"),
        "layer_norm_epsilon": keys.positive("attention.layer_norm_epsilon"),
    }
    keys.expect_head_dim(config["n_embd"] // config["n_head"])
    if keys.family == "gpt2":
        keys.expect("attention.head_count_kv", config["n_head"])
        return config | {"model_type": "gpt2", "activation_function": "gelu_new"}
    # Multi-query only: llama.cpp writes the rows of a multi-head file in another order than it reads them.
    keys.expect("attention.head_count_kv", 1)
    return config | {"model_type": keys.family, "activation_function": "gelu_pytorch_tanh", "multi_query": True}


_STORED = {"position_embd.weight": "position_embedding.weight", **fused_qkv(plain_mlp())}

_HEADS = ("num_attention_heads", "num_hidden_layers")

GPT2 = Family(
    _NAMES,
    _gpt2,
    keys={
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    },
    defaults={
        **sizes(50257, 768, None, 12, 12, context=1024),
        "eos_token_id": 50256,
        "hidden_act": "gelu_new",
        "rms_norm_eps": 1e-5,
        "scale_attn_weights": True,
        "tie_word_embeddings": True,
    },
    aliases={key: key for key in ("hidden_size", "max_position_embeddings", *_HEADS)},
    harmless=("n_ctx",),  # it repeats n_positions
    prefix="transformer.",
    ignored=("h.{i}.attn.bias", "h.{i}.attn.masked_bias"),  # the causal mask, stored by old conversions
    gguf=InGGUF("gpt2", _STORED, _read_gguf),
)
# num_key_value_heads repeats multi_query; the others are of a long gone implementation.
_MORE = "inference_runner max_batch_size num_key_value_heads pre_allocate_kv_cache"
GPT_BIGCODE = replace(
    GPT2,
    names=_BIGCODE_NAMES,
    read=_gpt_bigcode,
    defaults={
        **GPT2.defaults,
        **dict.fromkeys(_PRECISIONS, True),
        "hidden_act": "gelu_pytorch_tanh",
        "multi_query": True,
    },
    harmless=(*GPT2.harmless, *_MORE.split(), "validate_runner_input"),
    gguf=InGGUF("starcoder", _STORED, _read_gguf),
)
