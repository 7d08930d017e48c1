"""llama.cpp's files of Kimi Linear: latent attention as DeepSeek's, and delta attention with as many heads."""

from typing import Any

from tokenmill.model.config import ModelConfig
from tokenmill.model.families.deepseek_gguf import LATENT_NAMES, OTHER_NAMES, latent_metadata, read_latent
from tokenmill.model.families.hybrids import KV_HEADS
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.families.sigmoid_experts import moe_metadata, read_moe_gguf
from tokenmill.model.mixers.kda import KimiDeltaBlock
from tokenmill.model.mixers.latent import LatentBlock

_BLOCK, _OURS = "blk.{i}.", "layers.{i}.kda."
_NAMES = {
    **OTHER_NAMES,
    **LATENT_NAMES,
    _BLOCK + "attn_q.weight": f"layers.{{i}}.latent.down.weight:q or {_OURS}qkv.weight:q",
    _BLOCK + "attn_k.weight": _OURS + "qkv.weight:k",
    _BLOCK + "attn_v.weight": _OURS + "qkv.weight:v",
    _BLOCK + "attn_output.weight": f"layers.{{i}}.latent.out.weight or {_OURS}out.weight",
    **{f"{_BLOCK}ssm_conv1d_{letter}.weight": f"{_OURS}conv:{letter} | depthwise" for letter in "qkv"},
    _BLOCK + "ssm_f_a.weight": _OURS + "forget_in.weight",
    _BLOCK + "ssm_f_b.weight": _OURS + "forget_out.weight",
    _BLOCK + "ssm_g_a.weight": _OURS + "gate_in.weight",
    _BLOCK + "ssm_g_b.weight": _OURS + "gate_out.weight",
    _BLOCK + "ssm_beta.weight": _OURS + "beta.weight",
    _BLOCK + "ssm_a": _OURS + "A_log | column log of minus",
    _BLOCK + "ssm_dt.bias": _OURS + "dt_bias",
    _BLOCK + "ssm_norm.weight": _OURS + "norm.weight",
}


def _read(keys: GGUFKeys) -> dict[str, Any]:
    sizes = keys.sizes()
    attends = keys.layers_with(KV_HEADS, sizes["num_hidden_layers"])
    config = read_moe_gguf(keys, sizes | read_latent(keys))
    keys.take("expert_weights_norm", True)  # which llama.cpp does without being asked
    keys.take("rope.freq_base", None)  # no layer has a rope
    names = {"max_position_embeddings": "model_max_length", "norm_topk_prob": "moe_renormalize"}
    names |= {"n_group": "num_expert_group", "n_routed_experts": "num_experts"}
    names |= {"num_experts_per_tok": "num_experts_per_token", "n_shared_experts": "num_shared_experts"}
    return {names.get(key, key): value for key, value in config.items()} | {
        "model_type": "kimi_linear",
        "moe_renormalize": True,
        "layer_types": ["full_attention" if each else "linear_attention" for each in attends],
        "linear_head_dim": keys.count("kda.head_dim"),
        "linear_num_heads": sizes["num_attention_heads"],
        "linear_conv_kernel_dim": keys.count("ssm.conv_kernel", minimum=2),
    }


def _metadata(model: ModelConfig) -> dict[str, Any]:
    latent, delta = mixer_of(model, LatentBlock), mixer_of(model, KimiDeltaBlock)
    pairs = moe_metadata(model)
    if latent is not None:
        pairs |= latent_metadata(latent)
    if delta is not None:
        pairs |= {"kda.head_dim": delta.head_dim, "ssm.conv_kernel": delta.num_taps}
    return pairs | {KV_HEADS: [int(isinstance(mixer, LatentBlock)) for mixer in model.mixers]}


IN_GGUF = InGGUF("kimi-linear", _NAMES, _read, _metadata, needs=("no state bias", "own head"))
