"""Gemma 4, and the text part of its models that see and hear.

Its layers are unequal: full layers have wider heads and other numbers of them than layers with a window, and in some
models values that are their keys. Small models share the rows of K and V among their last layers, and have an input of
each token for each layer. One has experts beside a dense MLP. A norm without a weight stands behind the values, and a
number behind each layer.
"""

from dataclasses import replace
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.beside import BesideBlock
from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig, QKNorm, Rope
from tokenmill.model.description import MlpBlock
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.gemma import NORMS_ON_BOTH_SIDES
from tokenmill.model.families.gemma3n import PER_LAYER, PER_LAYER_IN_GGUF, of_layers, one_or_each, sources
from tokenmill.model.families.in_gguf import FULL, SLIDING, GGUFKeys, InGGUF
from tokenmill.model.families.in_gguf import NAMES as IN_GGUF
from tokenmill.model.mixture import ExpertsBlock
from tokenmill.model.per_layer import STORED_AS, per_layer_inputs
from tokenmill.model.ropes_by_kind import local_rope
from tokenmill.value_reader import ValueReader

_LAYER, _MIXTURE = "layers.{i}.", "layers.{i}.mlp.mixture."


def _dense(begin: str, end: str, norm: str) -> dict[str, str]:
    """Name the matrices of the dense MLP and the norm before it: the MLP of the layer, or the one beside experts."""
    goals = {"gate": "up{p}:gate", "up": "up{p}:up", "down": "down{p}"}
    found = {begin + part + end: f"{_LAYER}mlp.{goal} or {_LAYER}mlp.dense.{goal}" for part, goal in goals.items()}
    return {**found, norm: f"{_LAYER}mlp_norm.weight or {_LAYER}mlp.dense_norm.weight"}


NAMES = {
    **NORMS_ON_BOTH_SIDES,
    **_dense(_LAYER + "mlp.", "_proj{p}", _LAYER + "pre_feedforward_layernorm.weight"),
    _LAYER + "post_feedforward_layernorm_1.weight": _LAYER + "mlp.dense_after_norm.weight",
    _LAYER + "pre_feedforward_layernorm_2.weight": _LAYER + "mlp.mixture_norm.weight",
    _LAYER + "post_feedforward_layernorm_2.weight": _LAYER + "mlp.mixture_after_norm.weight",
    _LAYER + "router.scale": _LAYER + "mlp.router_norm.weight",
    _LAYER + "router.proj.weight": _MIXTURE + "router.weight",
    _LAYER + "router.per_expert_scale": _MIXTURE + "expert_scale",
    _LAYER + "experts.gate_up_proj[{e}]": _MIXTURE + "experts.{e}.up.weight",
    _LAYER + "experts.down_proj[{e}]": _MIXTURE + "experts.{e}.down.weight",
    _LAYER + "layer_scalar": _LAYER + "scalar",
    **PER_LAYER,
}

_BLOCK, _EXPERTS = "blk.{i}.", "_exps{p}[{e}]"
_STORED = {
    **{name: goal for name, goal in IN_GGUF.items() if "shexp" not in name and "exp_probs" not in name},
    **_dense(_BLOCK + "ffn_", "{p}", _BLOCK + "ffn_norm.weight"),
    _BLOCK + "post_ffw_norm_1.weight": _LAYER + "mlp.dense_after_norm.weight",
    _BLOCK + "pre_ffw_norm_2.weight": _LAYER + "mlp.mixture_norm.weight",
    _BLOCK + "post_ffw_norm_2.weight": _LAYER + "mlp.mixture_after_norm.weight",
    _BLOCK + "ffn_gate_inp.scale": _LAYER + "mlp.router_norm.weight",
    _BLOCK + "ffn_gate_inp.weight": _MIXTURE + "router.weight",
    _BLOCK + "ffn_down_exps.scale": _MIXTURE + "expert_scale",
    **{f"{_BLOCK}ffn_{part}{_EXPERTS}": f"{_MIXTURE}experts.{{e}}.up{{p}}:{part}" for part in ("gate", "up")},
    _BLOCK + "ffn_down" + _EXPERTS: _MIXTURE + "experts.{e}.down{p}",
    _BLOCK + "layer_output_scale.weight": _LAYER + "scalar",
    **PER_LAYER_IN_GGUF,
}
_STILL = 1e30  # divides the frequency of a pair that is not turned


def read_gemma4(reader: ConfigReader) -> dict[str, Any]:
    if reader.expect("use_bidirectional_attention", None, "vision", "all") == "all":
        raise CheckpointError(f"{reader.where}: it is an encoder, which writes no text (use_bidirectional_attention)")
    num_layers, hidden = reader.num_layers(), reader.count("hidden_size")
    types = reader.layer_types([FULL if layer % 6 == 5 else SLIDING for layer in range(num_layers)], FULL, SLIDING)
    types[-1] = FULL  # as its class has it, whatever the config says
    is_full = tuple(kind == FULL for kind in types)
    window, same = reader.window(), reader.flag("attention_k_eq_v")
    if window is None:
        raise reader.refuse("sliding_window", None, "a number of tokens")
    dims, kv_heads = _heads(reader, is_full, same)
    given = reader.inside("rope_parameters")
    ropes = {kind: _rope(given.inside(kind), kind, dims[types.index(kind)]) for kind in dict.fromkeys(types)}
    given.refuse_unread(set(given.values) - {FULL, SLIDING})
    return {
        **reader.attention_bias(),
        "norm_placement": "both",
        "norm_rounds_last": True,
        "activation": reader.text("hidden_activation"),
        "embedding_multiplier": hidden**0.5,
        "attention_scale": 1.0,
        "logit_softcap": reader.number("final_logit_softcapping", None),
        "qk_norm": QKNorm(),
        "value_norm": True,
        "value_is_key": tuple(same and full for full in is_full),
        "windows": tuple(None if full else window for full in is_full),
        "rope": ropes[FULL],
        "ropes": tuple(ropes[kind] for kind in types),
        "layer_head_dims": dims,
        "layer_kv_heads": kv_heads,
        "kv_sources": sources(reader, types),
        "layer_scalar": True,
        "mlps": _mlps(reader, num_layers, hidden),
        **_counts(reader),
        "per_layer": _per_layer(reader, num_layers, hidden),
    }


def _heads(reader: ConfigReader, is_full: tuple[bool, ...], same: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Read the width of the heads of each layer, and the number of its kv heads: of full layers by keys of their own,
    or layer by layer, as transformers writes them.
    """
    dim, kv_heads = reader.head_dim(), reader.count("num_key_value_heads")
    wide, few = reader.count("global_head_dim"), reader.count("num_global_key_value_heads", None)
    is_listed = "per_layer_config" in reader.values
    if is_listed and reader.values["per_layer_config"] is None:
        raise reader.refuse("per_layer_config", None, "an object by the numbers of layers; {} says that all are alike")
    listed = reader.inside("per_layer_config")
    names = {int(name): name for name in listed.values if name.isdecimal()}  # transformers writes "05" of 12 layers
    dims, counts = [], []
    for layer, full in enumerate(is_full):
        inner = listed.inside(names.get(layer, str(layer))) if is_listed else None
        default = (wide, few or kv_heads if same else kv_heads) if full and inner is None else (dim, kv_heads)
        dims.append(default[0] if inner is None else inner.count("head_dim", default[0]))
        counts.append(default[1] if inner is None else inner.count("num_key_value_heads", default[1]))
        if inner is not None:
            inner.refuse_unread(inner.values)
    listed.refuse_unread(listed.values)
    if odd := [each for each in dims if each % 2]:
        raise reader.refuse("head_dim", odd[0], "an even number, of which rope turns pairs")
    return tuple(dims), tuple(counts)


def _rope(given: ValueReader, kind: str, dim: int) -> Rope:
    form = given.expect("rope_type", *(("proportional", "default") if kind == FULL else ("default",)))
    theta = given.number("rope_theta", 1e6 if kind == FULL else 1e4)
    part = given.number("partial_rotary_factor", 0.25 if kind == FULL and not given.values else 1.0, maximum=1.0)
    given.refuse_unread(given.values)
    if form == "proportional":
        return Rope(dim, theta, form, (("partial_rotary_factor", part),))
    return Rope(dim, theta)  # which transformers turns whole


def _mlps(reader: ConfigReader, num_layers: int, hidden: int) -> tuple[MlpBlock | BesideBlock, ...]:
    width, activation = reader.count("intermediate_size"), reader.text("hidden_activation")
    first = num_layers - reader.count("num_kv_shared_layers", minimum=0)
    wide = reader.flag("use_double_wide_mlp")
    has_experts = reader.flag("enable_moe_block")
    num, chosen, inner = (
        reader.count(key, None if not has_experts else ...)
        for key in ("num_experts", "top_k_experts", "moe_intermediate_size")
    )
    eps = reader.number("rms_norm_eps", maximum=1.0)

    def mlp(size: int) -> MlpBlock:
        up = Projection("gate_up", hidden, (size, size))
        return MlpBlock(up, Projection("down", size, (hidden,)), activation, gated=True)

    dense = [mlp(width * (1 + (wide and layer >= first))) for layer in range(num_layers)]
    if not has_experts:
        return tuple(dense)
    router = Projection("router", hidden, (num,))
    mixture = ExpertsBlock(router, mlp(inner), num, chosen, normalise=True, expert_scale=True)
    return tuple(BesideBlock(each, mixture, Norm(hidden, "rms", eps, rounds_last=True)) for each in dense)


def _counts(reader: ConfigReader) -> dict[str, int]:
    if not reader.flag("enable_moe_block"):
        return {}
    return {"num_experts": reader.count("num_experts"), "num_experts_per_token": reader.count("top_k_experts")}


def _per_layer(reader: ConfigReader, num_layers: int, hidden: int) -> Any:
    size, vocab_size = reader.count("hidden_size_per_layer_input", minimum=0), reader.count("vocab_size")
    rows = reader.count("vocab_size_per_layer_input")
    if not size:
        return None
    if rows != vocab_size:
        raise reader.refuse("vocab_size_per_layer_input", rows, f"as many as vocab_size, {vocab_size}")
    eps, activation = reader.number("rms_norm_eps", maximum=1.0), reader.text("hidden_activation")
    facts: dict[str, Any] = {"size": size, "eps": eps, "activation": activation, "stored": reader.text(STORED_AS, "")}
    return per_layer_inputs(hidden, vocab_size=vocab_size, num_layers=num_layers, **facts)


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    layers = keys.count("block_count", maximum=MAX_LAYERS)
    slides = keys.by_layer("attention.sliding_window_pattern", layers)
    if slides is None:
        raise keys.refuse("attention.sliding_window_pattern", None, "a list that says which layers have a window")
    types = [SLIDING if each else FULL for each in slides]
    first = types.index(FULL) if FULL in types else layers
    sizes = {name: keys.count(key) for key, name in _SIZES.items()}
    inner, kv_heads = (
        of_layers(keys, "feed_forward_length", layers),
        of_layers(keys, "attention.head_count_kv", layers),
    )
    wide = keys.count("attention.key_length")
    keys.expect("attention.value_length", wide)
    keys.expect("rope.dimension_count", wide)
    narrow = keys.count("attention.key_length_swa")
    keys.expect("attention.value_length_swa", narrow)
    keys.expect("rope.dimension_count_swa", narrow)
    size = keys.count("embedding_length_per_layer_input", minimum=0)
    config: dict[str, Any] = {
        "model_type": keys.family,
        **sizes,
        "layer_types": types,
        "intermediate_size": inner[0],
        "num_key_value_heads": kv_heads[types.index(SLIDING) if SLIDING in types else 0],
        "head_dim": narrow,
        "global_head_dim": wide,
        "attention_k_eq_v": first < layers and f"blk.{first}.attn_v.weight" not in keys.tensors,
        "sliding_window": keys.window(),
        "num_kv_shared_layers": keys.count("attention.shared_kv_layers", 0, minimum=0, maximum=layers - 1),
        "use_double_wide_mlp": inner[-1] == 2 * inner[0],
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": None
        if keys.take("final_logit_softcapping", 0.0) == 0
        else keys.positive("final_logit_softcapping"),
        "hidden_size_per_layer_input": size,
        "rope_parameters": {
            FULL: {
                "rope_type": "proportional",
                "rope_theta": keys.positive("rope.freq_base"),
                "partial_rotary_factor": _part(keys, wide),
            },
            SLIDING: {"rope_type": "default", "rope_theta": keys.positive("rope.freq_base_swa", 10000.0)},
        },
        "vocab_size_per_layer_input": keys.rows("token_embd.weight"),
    }
    if config["attention_k_eq_v"]:
        config["num_global_key_value_heads"] = kv_heads[first]
    shared = config["num_kv_shared_layers"]
    expected = [
        inner[0] * (1 + (config["use_double_wide_mlp"] and layer >= layers - shared)) for layer in range(layers)
    ]
    if inner != expected:
        raise keys.refuse("feed_forward_length", inner, "one width, or twice as much in layers that share rows")
    if keys.take("expert_count", 0):
        keys.softmax_routing(True)
        config |= {"enable_moe_block": True, **keys.experts("num_experts", "top_k_experts")}
        config["moe_intermediate_size"] = keys.expert_width()
    return config


def _part(keys: GGUFKeys, dim: int) -> float:
    """Read the part of the pairs that are turned, of the divisors: 1, then as many as divide a frequency to nothing."""
    factors = list(keys.rope_lists.get("rope_freqs.weight", [1.0] * (dim // 2)))
    turned = sum(factor == 1 for factor in factors)
    if len(factors) != dim // 2 or factors[:turned] != [1.0] * turned or any(f < _STILL / 2 for f in factors[turned:]):
        what = f"divisors of the frequencies, rope_freqs.weight, that are no 1 and {_STILL:g} for {dim // 2} pairs"
        raise CheckpointError(f"{keys.where} has {what}")
    return 2 * turned / dim


def _metadata(model: ModelConfig) -> dict[str, Any]:
    slides = [window is not None for window in model.windows]
    local = local_rope(model)
    wide = model.layer_head_dims[slides.index(False)]
    inner = [mlp.dense if isinstance(mlp, BesideBlock) else mlp for mlp in model.mlps]
    mixture = next((mlp.mixture for mlp in model.mlps if isinstance(mlp, BesideBlock)), None)
    pairs: dict[str, Any] = {
        "attention.shared_kv_layers": sum(source is not None for source in model.kv_sources),
        "attention.sliding_window": max(window or 0 for window in model.windows),
        "attention.sliding_window_pattern": slides,
        "attention.head_count_kv": one_or_each(list(model.layer_kv_heads)),
        "feed_forward_length": one_or_each([mlp.down.inputs for mlp in inner]),
        "embedding_length_per_layer_input": 0 if model.per_layer is None else model.per_layer.size,
        **dict.fromkeys(("attention.key_length", "attention.value_length"), wide),
        **dict.fromkeys(("attention.key_length_swa", "attention.value_length_swa"), model.head_dim),
        "rope.dimension_count_swa": model.head_dim,
    }
    pairs |= {} if local is None else {"rope.freq_base_swa": local.theta}
    pairs |= {} if model.logit_softcap is None else {"final_logit_softcapping": model.logit_softcap}
    return pairs | ({} if mixture is None else {"expert_feed_forward_length": mixture.expert.down.inputs})


_SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
GEMMA4_TEXT = Family(
    NAMES,
    read_gemma4,
    defaults={
        **sizes(262144, 2304, 9216, 30, 8, 4, head_dim=256, context=131072),
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "global_head_dim": 512,
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262144,
        "num_kv_shared_layers": 0,
        "attention_k_eq_v": False,
        "enable_moe_block": False,
        "use_double_wide_mlp": False,
    },
    expected={"expert_intermediate_size": None},
    also={
        **{
            f"{_LAYER}experts.{{e}}.{part}_proj{{p}}": f"{_MIXTURE}experts.{{e}}.up{{p}}:{part}"
            for part in ("gate", "up")
        },
        _LAYER + "experts.{e}.down_proj{p}": _MIXTURE + "experts.{e}.down{p}",
    },
    gguf=InGGUF("gemma4", _STORED, _read_gguf, _metadata, needs=("no o_bias",), windows=lambda _: True),
)
_SEEN = "vision_config audio_config vision_soft_tokens_per_image".split()
_TOKENS = tuple(f"{name}_token_id" for name in "image video audio boi eoi boa eoa".split())
_MARKS = ("boi_token_index", "eoi_token_index", "eoa_token_index", "image_token_index", "audio_token_index")
_WHOLE = InnerTextModel(("gemma4_text",), ignored=(*_SEEN, *_TOKENS, *_MARKS))
GEMMA4 = replace(GEMMA4_TEXT, gguf=None, text=_WHOLE)
# The text part of the 12B model, whose pictures and sounds reach the decoder without an encoder. Its class has neither
# experts nor inputs of layers.
GEMMA4_UNIFIED_TEXT = replace(
    GEMMA4_TEXT,
    defaults={
        **GEMMA4_TEXT.defaults,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
    expected={**GEMMA4_TEXT.expected, "hidden_size_per_layer_input": 0, "enable_moe_block": False},
)
GEMMA4_UNIFIED = replace(GEMMA4_UNIFIED_TEXT, gguf=None, text=replace(_WHOLE, families=("gemma4_unified_text",)))
