"""llama.cpp's names of tensors and the parameters that they fill, in the form that a Family's `names` have.

They are the names of LLM_TENSOR_NAMES in llama.cpp's src/llama-arch.cpp. Architectures share most of them; a family
takes NAMES, or changes it by the functions here, or adds names of its own.
"""

from collections.abc import Collection, Mapping


def _mlp(suffix: str, ours: str, expert: str = "") -> dict[str, str]:
    return {
        f"blk.{{i}}.ffn_gate{suffix}{{p}}{expert}": f"layers.{{i}}.mlp.{ours}up{{p}}:gate",
        f"blk.{{i}}.ffn_up{suffix}{{p}}{expert}": f"layers.{{i}}.mlp.{ours}up{{p}}:up",
        f"blk.{{i}}.ffn_down{suffix}{{p}}{expert}": f"layers.{{i}}.mlp.{ours}down{{p}}",
    }


QKV = {f"blk.{{i}}.attn_{letter}{{p}}": f"layers.{{i}}.attention.qkv{{p}}:{letter}" for letter in "qkv"}
FUSED_QKV = {"blk.{i}.attn_qkv{p}": "layers.{i}.attention.qkv{p}"}
GATED = _mlp("", "")
PLAIN_MLP = {"blk.{i}.ffn_up{p}": "layers.{i}.mlp.up{p}", "blk.{i}.ffn_down{p}": "layers.{i}.mlp.down{p}"}
"""An MLP without a gate, or with its gate before the rest in one matrix."""
_REST = {
    "token_embd.weight": "embedding.weight",
    "blk.{i}.attn_norm{p}": "layers.{i}.attention_norm{p}",
    "blk.{i}.attn_q_norm{p}": "layers.{i}.attention.q_norm{p}",
    "blk.{i}.attn_k_norm{p}": "layers.{i}.attention.k_norm{p}",
    "blk.{i}.attn_sinks.weight": "layers.{i}.attention.sinks",
    "blk.{i}.attn_output{p}": "layers.{i}.attention.out{p}",
    "blk.{i}.post_attention_norm{p}": "layers.{i}.attention_after_norm{p}",
    "blk.{i}.ffn_norm{p}": "layers.{i}.mlp_norm{p}",
    "blk.{i}.post_ffw_norm{p}": "layers.{i}.mlp_after_norm{p}",
    "output_norm{p}": "norm{p}",
    "output{p}": "head{p}",
}
_ROUTED = {
    "blk.{i}.ffn_gate_inp{p}": "layers.{i}.mlp.router{p}",
    "blk.{i}.exp_probs_b.bias": "layers.{i}.mlp.correction",
    **_mlp("_exps", "experts.{e}.", "[{e}]"),
    "blk.{i}.ffn_gate_inp_shexp.weight": "layers.{i}.mlp.shared_gate.weight | as a row",
    **_mlp("_shexp", "shared."),
}
NAMES = {**_REST, **QKV, **GATED, **_ROUTED}
"""llama.cpp's name of a tensor → target, as in a Family's `names`."""


def fused_qkv(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """Name the tensors of a file that has Q, K and V in one tensor."""
    return {**{name: target for name, target in names.items() if name not in QKV}, **FUSED_QKV}


def as_stored(names: Mapping[str, str], stored: Collection[str]) -> dict[str, str]:
    """Name the tensors of a file that has Q, K and V, or gate and up of the experts, in one tensor where others have
    several, as llama.cpp's converter can be asked to write it.
    """
    found = dict(names)
    if "blk.0.attn_qkv.weight" in stored and QKV.keys() <= names.keys():
        is_paired = "pairs_to_halves" in names["blk.{i}.attn_q{p}"]
        found = fused_qkv(found)
        found["blk.{i}.attn_qkv{p}"] += " | pairs_to_halves of qkv" if is_paired else ""
    if any(name.partition("[")[0].endswith(".ffn_gate_up_exps.weight") for name in stored):
        gate, up = (f"blk.{{i}}.ffn_{name}_exps{{p}}[{{e}}]" for name in ("gate", "up"))
        target = found.pop(gate, "").removesuffix(":gate")
        if found.pop(up, None) is not None:
            found["blk.{i}.ffn_gate_up_exps{p}[{e}]"] = target
    return found


def plain_mlp(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """Name the tensors of a file whose `ffn_up` is all of a layer's first matrix."""
    return {**{name: target for name, target in names.items() if name not in GATED}, **PLAIN_MLP}


def paired(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """Name the tensors of a file whose rows of Q and K rotate in pairs of neighbours."""
    rotated = [f"blk.{{i}}.attn_{letter}{{p}}" for letter in "qk"]
    return {**names, **{name: f"{names[name]} | pairs_to_halves" for name in rotated}}


def mlp_norm_after_attention(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """Name the tensors of a file that calls the norm before the MLP "post attention", as Hugging Face does."""
    others = {name: target for name, target in names.items() if name != "blk.{i}.ffn_norm{p}"}
    return {**others, "blk.{i}.post_attention_norm{p}": "layers.{i}.mlp_norm{p}"}


def norms_less_one(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """Name the tensors of a file that stores 1 + weight for norms that multiply by 1 + weight."""
    norms = [name for name in names if name.endswith("norm{p}")]
    weights = {name: (name.replace("{p}", ".weight"), names[name].replace("{p}", ".weight")) for name in norms}
    biases = {name.replace("{p}", ".bias"): names[name].replace("{p}", ".bias") for name in norms}
    others = {name: target for name, target in names.items() if name not in norms}
    return {**others, **{name: f"{target} | less one" for name, target in weights.values()}, **biases}
