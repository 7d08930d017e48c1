"""OLMo Hybrid of Ai2: three layers with a gated delta net, then one with attention, which is OLMo 2's.

Delta nets and their MLPs have their norms before them, attention and its MLP behind them. The published model has no
rope. Two tensors are not what their names say where transformers 5.24 writes the published names: the norm behind
attention is named "feedforward_layer_norm", as the norm before the MLP of the other layers is; and the taps of q, k and
v, which its modules have in one tensor, are cut into three pieces of the same size.
"""

from typing import Any

from tokenmill.model.config import ConfigReader, QKNorm
from tokenmill.model.families import Family, sizes
from tokenmill.model.families.olmo import AFTER_NAMES
from tokenmill.model.mixers.delta_net import delta_net

_FULL, _LINEAR = "full_attention", "linear_attention"
_LAYER = "layers.{i}."
_FILE, _OURS = _LAYER + "linear_attn.", _LAYER + "delta_net."
_NORM = _LAYER + "mlp_norm.weight or layers.{i}.attention_after_norm.weight"


def _olmo_hybrid(reader: ConfigReader) -> dict[str, Any]:
    num_layers, hidden = reader.num_layers(), reader.count("hidden_size")
    heads = reader.count("num_attention_heads")
    default = [_LINEAR if layer % 4 else _FULL for layer in range(1, num_layers + 1)]
    if _FULL not in default:
        default[-1] = _FULL
    types = reader.layer_types(default, _FULL, _LINEAR)
    if len(set(types)) == 1:
        raise reader.refuse("layer_types", types, f"at least one {_FULL} and one {_LINEAR}")
    num_k_heads = reader.count("linear_num_key_heads", heads)
    num_v_heads = reader.count("linear_num_value_heads", heads)
    if num_v_heads % num_k_heads:
        allowed = f"a multiple of linear_num_key_heads, {num_k_heads}"
        raise reader.refuse("linear_num_value_heads", num_v_heads, allowed)
    key_dim = reader.count("linear_key_head_dim", int(0.75 * hidden / num_k_heads))
    block = delta_net(
        hidden,
        num_k_heads=num_k_heads,
        num_v_heads=num_v_heads,
        key_dim=key_dim,
        value_dim=reader.count("linear_value_head_dim", 2 * key_dim),
        num_taps=reader.count("linear_conv_kernel_dim", minimum=2),
        eps=1e-5,  # whatever the other norms have
        max_beta=2.0 if reader.flag("linear_allow_neg_eigval") else 1.0,
    )
    return {
        **reader.attention_bias(),
        **_rope(reader),
        "mixers": tuple(block if kind == _LINEAR else None for kind in types),
        "norm_placement": tuple("before" if kind == _LINEAR else "after" for kind in types),
        "norm_rounds_last": True,
        "qk_norm": QKNorm("all"),
    }


def _rope(reader: ConfigReader) -> dict[str, Any]:
    """Read the rope; a base that is null says that there is none."""
    inner = reader.inside("rope_scaling").values or reader.inside("rope_parameters").values
    given = inner if "rope_theta" in inner else reader.values
    if "rope_theta" not in given or given["rope_theta"] is not None:
        return {}
    reader.read |= {"rope_theta", "rope_parameters", "rope_scaling"}
    return {"rope": None}


_NAMES = {
    **AFTER_NAMES,
    _LAYER + "attention_layer_norm.weight": _LAYER + "attention_norm.weight",
    _LAYER + "feedforward_layer_norm.weight": _LAYER + "mlp_norm.weight",
    **{f"{_FILE}{role}_proj.weight": f"{_OURS}qkvz.weight:{role}" for role in "qkv"},
    _FILE + "g_proj.weight": _OURS + "qkvz.weight:z",
    **{f"{_FILE}{role}_proj.weight": f"{_OURS}gates.weight:{role}" for role in "ba"},
    **{f"{_FILE}{role}_conv1d.weight": f"{_OURS}conv:{role} | depthwise" for role in "qkv"},
    _FILE + "A_log": _OURS + "A_log",
    _FILE + "dt_bias": _OURS + "dt_bias",
    _FILE + "o_norm.weight": _OURS + "norm.weight",
    _FILE + "o_proj.weight": _OURS + "out.weight",
}
# transformers' modules, and what it writes.
_ALSO = {
    **{f"{_FILE}{role}_conv1d.weight": f"{_OURS}conv:{number}/3 | depthwise" for number, role in enumerate("qkv")},
    _LAYER + "input_layernorm.weight": _LAYER + "attention_norm.weight",
    _LAYER + "post_attention_layernorm.weight": _NORM,
    _LAYER + "feedforward_layer_norm.weight": _NORM,
    _FILE + "conv1d.weight": _OURS + "conv | depthwise",
}
OLMO_HYBRID = Family(
    _NAMES,
    _olmo_hybrid,
    defaults={
        **sizes(100352, 3840, 11008, 32, 30, context=65536),
        "eos_token_id": 100257,
        "linear_allow_neg_eigval": True,
        "linear_conv_kernel_dim": 4,
    },
    # They initialise.
    harmless=tuple(f"linear_{name}" for name in ("a_log_max", "a_log_min", "dt_init_floor", "dt_max", "dt_min")),
    also=_ALSO,
)
