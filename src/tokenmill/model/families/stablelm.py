"""StableLM of Stability AI: Llama with LayerNorm and a part of each head rotated.

StableLM 2 12B has attention and MLP side by side, and for each head of Q and K a norm with weights of its own.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, has_bias, like_llama
from tokenmill.model.families.llama import NAMES

_NAMES = {
    **{name: target for name, target in NAMES.items() if "norm" not in name},
    "layers.{i}.input_layernorm{p}": "layers.{i}.attention_norm{p}",
    "layers.{i}.post_attention_layernorm{p}": "layers.{i}.mlp_norm{p}",
    "layers.{i}.self_attn.q_layernorm.norms.{h}.weight": "layers.{i}.attention.q_norm.weight:{h}",
    "layers.{i}.self_attn.k_layernorm.norms.{k}.weight": "layers.{i}.attention.k_norm.weight:{k}",
    "norm{p}": "norm{p}",
}


def _stablelm(reader: ConfigReader) -> dict[str, Any]:
    parallel = reader.flag("use_parallel_residual")
    return {
        "norm": "layer",
        "residual": "parallel" if parallel else "serial",
        "shared_norm": parallel,
        "qkv_bias": reader.flag("use_qkv_bias"),
        "qk_norm": QKNorm("own") if reader.flag("qk_layernorm") else None,
    }


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    """Read StableLM. Attention and MLP are parallel where the MLP has no norm; llama.cpp does not read the key."""
    config = like_llama(keys, rotates_all=False, eps="layer_norm_eps")
    keys.take("use_parallel_residual", None)
    config["use_parallel_residual"] = not keys.has("ffn_norm.weight")
    return config | has_bias(keys, "use_qkv_bias") | has_bias(keys, "qk_layernorm", "attn_q_norm.weight")


STABLELM = Family(
    _NAMES,
    _stablelm,
    keys={"rms_norm_eps": "layer_norm_eps"},
    defaults={
        **sizes(50304, 2560, 6912, 32, 32, 32, context=4096),
        "eos_token_id": 0,
        "partial_rotary_factor": 0.25,
        "qk_layernorm": False,
        "rms_norm_eps": 1e-5,
        "use_parallel_residual": False,
        "use_qkv_bias": False,
    },
    gguf=InGGUF(
        "stablelm",
        read=_read_gguf,
        metadata=lambda model: {"use_parallel_residual": model.residual == "parallel"},
        needs=("own head", "square"),
    ),
)
