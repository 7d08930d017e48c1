"""Gemma 3n, and the text part of its models that see and hear; and what Gemma 4 has in common with it.

Each token has several streams, of which a layer computes with the first, and an input of its own for each layer. The
first layers keep the largest gates of their MLPs alone; the last ones read the rows of K and V of layers before them.
Attention has two matrices beside it, and a norm without a weight behind the values.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig, QKNorm
from tokenmill.model.description import MlpBlock
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.gemma import NORMS_ON_BOTH_SIDES, ROPES
from tokenmill.model.families.in_gguf import FULL, SLIDING, GGUFKeys, InGGUF
from tokenmill.model.families.in_gguf import NAMES as IN_GGUF
from tokenmill.model.per_layer import STORED_AS
from tokenmill.model.ropes_by_kind import local_rope, read_ropes
from tokenmill.model.sparse import SparseMlpBlock
from tokenmill.model.streams import StreamsBlock, StreamsInputs
from tokenmill.value_reader import ValueReader

_LAYER, _BLOCK, _OWN = "layers.{i}.", "blk.{i}.", "layers.{i}.per_layer."
PER_LAYER = {
    _LAYER + "per_layer_input_gate.weight": _OWN + "gate.weight",
    _LAYER + "per_layer_projection.weight": _OWN + "projection.weight",
    _LAYER + "post_per_layer_input_norm.weight": _OWN + "norm.weight",
    "embed_tokens_per_layer.weight": "per_layer.embedding.weight",
    "per_layer_model_projection.weight": "per_layer.projection.weight",
    "per_layer_projection_norm.weight": "per_layer.norm.weight",
}
PER_LAYER_IN_GGUF = {
    _BLOCK + "inp_gate.weight": _OWN + "gate.weight",
    _BLOCK + "proj.weight": _OWN + "projection.weight",
    _BLOCK + "post_norm.weight": _OWN + "norm.weight",
    "per_layer_token_embd.weight": "per_layer.embedding.weight",
    "per_layer_model_proj.weight": "per_layer.projection.weight",
    "per_layer_proj_norm.weight": "per_layer.norm.weight",
}
_NAMES = {
    **NORMS_ON_BOTH_SIDES,
    **PER_LAYER,
    _LAYER + "altup.modality_router.weight": _OWN + "router",
    _LAYER + "altup.prediction_coefs.weight": _OWN + "predict",
    _LAYER + "altup.correction_coefs.weight": _OWN + "correct",
    _LAYER + "altup.correct_output_scale": _OWN + "scale",
    _LAYER + "altup.router_norm.weight": _OWN + "router_norm.weight",
    _LAYER + "laurel.linear_left.weight": _OWN + "laurel.left.weight",
    _LAYER + "laurel.linear_right.weight": _OWN + "laurel.right.weight",
    _LAYER + "laurel.post_laurel_norm.weight": _OWN + "laurel.norm.weight",
    "altup_projections.{e}.weight": "per_layer.expand.{e}.weight",
    "altup_unembed_projections.{e}.weight": "per_layer.join.{e}.weight",
}
_STORED = {
    **{name: goal for name, goal in IN_GGUF.items() if "exp" not in name and "gate_inp" not in name},
    **PER_LAYER_IN_GGUF,
    _BLOCK + "altup_router.weight": _OWN + "router",
    _BLOCK + "altup_predict_coef.weight": _OWN + "predict",
    _BLOCK + "altup_correct_coef.weight": _OWN + "correct",
    _BLOCK + "altup_correct_scale.weight": _OWN + "scale",
    _BLOCK + "altup_router_norm.weight": _OWN + "router_norm.weight",
    _BLOCK + "laurel_l.weight": _OWN + "laurel.left.weight",
    _BLOCK + "laurel_r.weight": _OWN + "laurel.right.weight",
    _BLOCK + "laurel_post_norm.weight": _OWN + "laurel.norm.weight",
    "altup_proj.weight[{e}]": "per_layer.expand.{e}.weight",
    "altup_unembd_proj.weight[{e}]": "per_layer.join.{e}.weight",
}
NUM_STREAMS = 4  # as in all published models, in llama.cpp and in its converter


def _gemma3n(reader: ConfigReader) -> dict[str, Any]:
    num_layers, hidden = reader.num_layers(), reader.count("hidden_size")
    types = reader.layer_types([FULL if layer % 5 == 4 else SLIDING for layer in range(num_layers)], FULL, SLIDING)
    window, ropes = reader.window(), read_ropes(reader, ROPES)
    if window is None:
        raise reader.refuse("sliding_window", None, "a number of tokens")
    mlps = _mlps(reader, num_layers, hidden)
    return {
        **reader.attention_bias(),
        "norm_placement": "both",
        "norm_rounds_last": True,
        "activation": reader.text("hidden_activation"),
        "intermediate_size": max(mlp.down.inputs for mlp in mlps),
        "embedding_multiplier": hidden**0.5,
        "attention_scale": 1.0,
        "logit_softcap": reader.number("final_logit_softcapping"),
        "qk_norm": QKNorm(),
        "value_norm": True,
        "windows": tuple(window if kind == SLIDING else None for kind in types),
        "rope": ropes[FULL],
        "ropes": tuple(ropes[kind] for kind in types),
        "kv_sources": sources(reader, types),
        "mlps": mlps,
        "per_layer": _streams(reader, num_layers, hidden),
    }


def sources(reader: ConfigReader, types: list[str]) -> tuple[int | None, ...]:
    """Find the layer whose rows each of the last layers reads: the last one of its kind before them."""
    shared = reader.count("num_kv_shared_layers", minimum=0, maximum=len(types) - 1)
    first = len(types) - shared
    last = {kind: layer for layer, kind in enumerate(types[:first])}
    if lacking := sorted(set(types[first:]) - set(last)):
        raise reader.refuse("num_kv_shared_layers", shared, f"a layer of {', '.join(lacking)} before those that share")
    return tuple(None if layer < first else last[kind] for layer, kind in enumerate(types))


def _mlps(reader: ConfigReader, num_layers: int, hidden: int) -> tuple[MlpBlock, ...]:
    """Read the widths of the MLPs, one for each layer or one for all, and which of their gates are kept."""
    widths, key = reader.take("intermediate_size"), "activation_sparsity_pattern"
    if isinstance(widths, list):
        each = {f"intermediate_size[{layer}]": width for layer, width in enumerate(widths)}
        widths = [ValueReader(each, reader.where, reader.error).count(key) for key in each]
        if len(widths) != num_layers:
            raise reader.refuse("intermediate_size", widths, f"a width for each of {num_layers} layers, or one for all")
    else:
        widths = [reader.count("intermediate_size")] * num_layers
    num_sparse = 10 if num_layers > 10 else 0
    usual = [0.95] * num_sparse + [0.0] * (num_layers - num_sparse)
    pattern, activation = reader.take(key, None), reader.text("hidden_activation")
    pattern = usual if pattern is None else pattern
    is_list = isinstance(pattern, list) and len(pattern) == num_layers
    if not is_list or not all(type(part) in (int, float) and 0 <= part < 1 for part in pattern):
        raise reader.refuse(key, pattern, f"a number from 0 to below 1 for each of {num_layers} layers")

    def mlp(width: int, sparsity: float) -> MlpBlock:
        up, down = Projection("gate_up", hidden, (width, width)), Projection("down", width, (hidden,))
        if not sparsity:
            return MlpBlock(up, down, activation, gated=True)
        return SparseMlpBlock(up, down, activation, gated=True, sparsity=float(sparsity))

    return tuple(mlp(*each) for each in zip(widths, pattern, strict=True))


def _streams(reader: ConfigReader, num_layers: int, hidden: int) -> StreamsInputs:
    num, size = reader.expect("altup_num_inputs", NUM_STREAMS), reader.count("hidden_size_per_layer_input")
    reader.expect("altup_active_idx", 0)
    rows = reader.count("vocab_size_per_layer_input")
    rank, eps = reader.count("laurel_rank"), reader.number("rms_norm_eps", maximum=1.0)
    block = StreamsBlock(
        gate=Projection("per_layer_gate", hidden, (size,)),
        projection=Projection("per_layer_projection", size, (hidden,)),
        norm=Norm(hidden, "rms", eps, rounds_last=True),
        activation=reader.text("hidden_activation"),
        num=num,
        laurel=(Projection("laurel_left", hidden, (rank,)), Projection("laurel_right", rank, (hidden,))),
        scaled=reader.flag("altup_correct_scale"),
    )
    return StreamsInputs(
        vocab_size=rows,
        size=size,
        num_layers=num_layers,
        projection=Projection("per_layer_inputs", hidden, (size * num_layers,)),
        norm=Norm(size, "rms", eps, rounds_last=True),
        stored=reader.text(STORED_AS, ""),
        stream=Projection("stream", hidden, (hidden,)),
        block=block,
    )


def _read_gguf(keys: GGUFKeys) -> dict[str, Any]:
    layers, key = keys.count("block_count", maximum=MAX_LAYERS), "activation_sparsity_scale"
    head_dim = keys.count("attention.key_length")
    keys.expect_head_dim(head_dim)
    keys.expect("rope.dimension_count", head_dim)
    scales = ValueReader.take(keys, key, None)  # of each layer: below 0 where all gates are kept
    if not isinstance(scales, list) or len(scales) != layers or not all(type(each) is float for each in scales):
        raise keys.refuse(key, scales, f"a number for each of {layers} layers")
    keys.expect("altup.num_inputs", NUM_STREAMS)
    keys.expect("altup.active_idx", 0)
    config: dict[str, Any] = {
        "model_type": keys.family,
        **{name: keys.count(each) for each, name in _SIZES.items()},
        "intermediate_size": one_or_each(of_layers(keys, "feed_forward_length", layers)),
        "num_key_value_heads": keys.count("attention.head_count_kv"),
        "head_dim": head_dim,
        "layer_types": keys.layer_types(layers, 5),
        "sliding_window": keys.window(),
        "num_kv_shared_layers": keys.count("attention.shared_kv_layers", 0, minimum=0, maximum=layers - 1),
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.positive("rope.freq_base"),
        "rope_local_base_freq": keys.positive("rope.freq_base_swa", 10000.0),
        "final_logit_softcapping": keys.positive("final_logit_softcapping", 30.0),
        "activation_sparsity_pattern": [_part_of(scale) for scale in scales],
        "laurel_rank": keys.rows("blk.0.laurel_l.weight"),
        "vocab_size_per_layer_input": keys.rows("per_layer_token_embd.weight"),
    }
    first, usual = layers - config["num_kv_shared_layers"], [0.95] * _SPARSE + [0.0] * (layers - _SPARSE)
    if first != min(_FIRST_SHARED, layers) or config["activation_sparsity_pattern"] != usual[:layers]:
        what = (
            "%s: llama.cpp shares rows from layer %d on, and %d layers keep the largest gates alone: its text differs"
        )
        keys.warn(what, keys.where, _FIRST_SHARED, _SPARSE)
    return config


_FIRST_SHARED, _SPARSE = 20, 10  # which stand in llama.cpp's code, whatever the file says


def _part_of(scale: float) -> float:
    """Find the part of the gates that becomes zero, of the number of standard deviations: 0.95 of 1.6448534."""
    return round(NormalDist().cdf(scale), 6)


def _metadata(model: ModelConfig) -> dict[str, Any]:
    slides = [window is not None for window in model.windows]
    local = local_rope(model)
    parts = [mlp.cutoff if isinstance(mlp, SparseMlpBlock) else float("-inf") for mlp in model.mlps]
    pairs: dict[str, Any] = {
        "activation_sparsity_scale": parts,
        "altup.active_idx": 0,
        "altup.num_inputs": NUM_STREAMS,
        "attention.shared_kv_layers": sum(source is not None for source in model.kv_sources),
        "attention.sliding_window": max(window or 0 for window in model.windows),
        "attention.sliding_window_pattern": slides,
        "embedding_length_per_layer_input": model.per_layer.size,
        "feed_forward_length": one_or_each([mlp.down.inputs for mlp in model.mlps]),
    }
    pairs |= {} if local is None else {"rope.freq_base_swa": local.theta}
    return pairs | {"final_logit_softcapping": model.logit_softcap}


def _unread(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """List the keys and values of layers that read the rows of others, which llama.cpp's loader wants all the same."""
    rows, found = model.num_kv_heads * model.head_dim, dict[str, tuple[int, ...]]()
    for layer, source in enumerate(model.kv_sources):
        if source is not None:
            found |= dict.fromkeys((f"blk.{layer}.attn_{name}.weight" for name in "kv"), (rows, model.hidden_size))
            found[f"blk.{layer}.attn_k_norm.weight"] = (model.head_dim,)
    return found


def of_layers(keys: GGUFKeys, key: str, layers: int) -> list[int]:
    """Read a number of each layer, or one of all layers."""
    given = keys.by_layer(key, layers)
    return [keys.count(key)] * layers if given is None else [int(each) for each in given]


def one_or_each(numbers: Sequence[int]) -> int | list[int]:
    """Give the number of all layers, or the list where they differ."""
    return list(numbers) if len(set(numbers)) > 1 else numbers[0]


_SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}
GEMMA3N_TEXT = Family(
    _NAMES,
    _gemma3n,
    defaults={
        **sizes(262400, 2048, 16384, 35, 8, 2, head_dim=256, context=32768),
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "final_logit_softcapping": 30.0,
        "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256,
        "altup_active_idx": 0,
        "altup_correct_scale": True,
        "altup_num_inputs": NUM_STREAMS,
        "num_kv_shared_layers": 15,
        "laurel_rank": 64,
        "activation_sparsity_pattern": None,
    },
    harmless=("altup_coef_clip",),  # of training alone
    gguf=InGGUF(
        "gemma3n",
        _STORED,
        _read_gguf,
        _metadata,
        needs=("no o_bias",),
        windows=lambda _: True,
        zeros=_unread,
    ),
)
_SEEN = "vision_config audio_config vision_soft_tokens_per_image audio_soft_tokens_per_image".split()
_TOKENS = tuple(f"{name}_token_id" for name in "image audio boi eoi boa eoa".split())
_WHOLE = InnerTextModel(("gemma3n_text",), untied_by_null=True, ignored=(*_SEEN, *_TOKENS))
GEMMA3N = replace(GEMMA3N_TEXT, gguf=None, text=_WHOLE)
