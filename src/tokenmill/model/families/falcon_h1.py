"""Falcon-H1: in every layer attention and Mamba 2 read the same norm, and their outputs are added up. The products of
most matrices have multipliers (µP: Yang et al. 2022, arXiv 2203.03466).

The multipliers before attention and of K become a part of the scale of scores and of the output: scores are products of
Q and K, and the output is a sum of V.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tokenmill.model.blocks import Norm
from tokenmill.model.config import ConfigReader, ModelConfig
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import NAMES as IN_GGUF
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama
from tokenmill.model.families.mamba2 import BAMBA, MAMBA_DEFAULTS, MAMBA_NULLS, read_mamba, read_ssm, ssm_metadata
from tokenmill.model.families.mamba2 import IN_GGUF as MAMBA_IN_GGUF
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.mixers.mamba2 import Mamba2Block

_ONES: dict[str, Any] = dict.fromkeys(
    """embedding_multiplier lm_head_multiplier key_multiplier attention_in_multiplier attention_out_multiplier
    ssm_in_multiplier ssm_out_multiplier""".split(),
    1.0,
)
_LISTS = {"mlp_multipliers": [1.0] * 2, "ssm_multipliers": [1.0] * 5}


def _falcon_h1(reader: ConfigReader) -> dict[str, Any]:
    inside, key = (reader.number(name) for name in ("attention_in_multiplier", "key_multiplier"))
    bias = reader.attention_bias()
    if bias["qkv_bias"] and inside != 1.0:
        raise reader.refuse("attention_in_multiplier", inside, "1.0 where attention_bias is true")
    gate, down = _numbers(reader, "mlp_multipliers")
    return {
        **bias,
        "mlp_bias": reader.flag("mlp_bias"),
        "embedding_multiplier": reader.number("embedding_multiplier"),
        "logit_multiplier": reader.number("lm_head_multiplier"),
        "attention_scale": reader.head_dim() ** -0.5 * inside**2 * key,
        "attention_out_multiplier": inside * reader.number("attention_out_multiplier"),
        "mlp_multipliers": (gate, down),
        "mixers": ((_mamba(reader), None),) * reader.num_layers(),
    }


def _mamba(reader: ConfigReader) -> Mamba2Block:
    block = read_mamba(reader, reader.count("mamba_d_ssm", None))
    inside, parts = reader.number("ssm_in_multiplier"), _numbers(reader, "ssm_multipliers")
    if block.inner.bias and inside != 1.0:
        raise reader.refuse("ssm_in_multiplier", inside, "1.0 where mamba_proj_bias is true")
    has_norm, is_first = reader.flag("mamba_rms_norm"), reader.flag("mamba_norm_before_gate")
    norm = Norm(block.width, "rms", reader.number("rms_norm_eps", maximum=1.0))
    outside = (reader.number("ssm_out_multiplier"),)
    return replace(
        block,
        inner=replace(block.inner, multipliers=tuple(inside * part for part in parts)),
        out=replace(block.out, bias=reader.flag("projectors_bias"), multipliers=outside),
        norm=norm if has_norm else None,
        norm_first=has_norm and is_first,
    )


def _numbers(reader: ConfigReader, key: str) -> Sequence[float]:
    """Read the multipliers of so many parts; all are 1 where the key is null."""
    parts = _LISTS[key] if reader.take(key, None) is None else reader.numbers(key)
    if len(parts) != len(_LISTS[key]):
        raise reader.refuse(key, parts, f"{len(_LISTS[key])} numbers")
    return parts


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read a model whose multipliers are all part of its weights. llama.cpp multiplies by the gate before the norm."""
    ssm = read_ssm(keys)
    return (
        like_llama(keys)
        | has_bias(keys)
        | has_bias(keys, "mlp_bias", "ffn_up.bias")
        | {
            "mamba_d_ssm": ssm["num_heads"] * ssm["head_dim"],
            "mamba_n_heads": ssm["num_heads"],
            "mamba_d_head": ssm["head_dim"],
            "mamba_n_groups": ssm["num_groups"],
            "mamba_d_state": ssm["state_dim"],
            "mamba_d_conv": ssm["num_taps"],
            "mamba_conv_bias": keys.has("ssm_conv1d.bias"),
            "mamba_rms_norm": keys.has("ssm_norm.weight"),
            "mamba_norm_before_gate": False,
        }
    )


def _metadata(model: ModelConfig) -> dict[str, Any]:
    block = mixer_of(model, Mamba2Block)
    assert block is not None, "every layer has one"
    return ssm_metadata(block)


FALCON_H1 = Family(
    BAMBA.names,
    _falcon_h1,
    defaults={
        **sizes(128000, 4096, 14336, 32, 32, 8, context=8192),
        **MAMBA_DEFAULTS,
        **_ONES,
        **dict.fromkeys(_LISTS),
        "mamba_d_ssm": 1024,
        "mamba_norm_before_gate": True,
        "mamba_rms_norm": False,
        "projectors_bias": False,
        "rms_norm_eps": 1e-5,
    },
    nulls={
        **dict.fromkeys(("mamba_norm_before_gate", "mamba_rms_norm", "projectors_bias"), False),
        "num_key_value_heads": None,
        "mamba_d_ssm": None,
        **MAMBA_NULLS,
    },
    expected={"hidden_act": "silu"},
    harmless=(
        *("mamba_chunk_size", "num_logits_to_keep"),
        *("attn_layer_indices", "mamba_use_mlp"),  # in published files; transformers does not read them
    ),
    gguf=InGGUF(
        "falcon-h1",
        {
            **{name: target for name, target in IN_GGUF.items() if name != "blk.{i}.ffn_norm{p}"},
            "blk.{i}.ffn_norm": "layers.{i}.mlp_norm.weight",
            **MAMBA_IN_GGUF,
        },
        _read_gguf,
        _metadata,
        needs=("no o_bias", "no state bias", "conv bias"),
        ones={**_ONES, **_LISTS},
    ),
)
