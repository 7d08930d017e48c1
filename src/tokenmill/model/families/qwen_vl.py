"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL, whose text part is read: it is Qwen 2, Qwen 3 or Qwen 3 with experts.

A token has three positions there, of which each turns a section of a head (M-RoPE). The three are equal for text, so
that the sections say nothing. Qwen3-VL also adds pictures to the first layers, which does not concern text.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.families import Family, InnerTextModel, sizes
from tokenmill.model.families.in_gguf import GGUFKeys, InGGUF, like_llama, like_llama_with_biases
from tokenmill.model.families.llama import PACKED_EXPERTS
from tokenmill.model.families.qwen import QWEN2, QWEN3
from tokenmill.model.families.qwen_moe import QWEN3_MOE, read_gguf
from tokenmill.value_reader import brief

_SEEN = tuple(
    f"{name}_id" for name in "image_token video_token vision_token vision_start_token vision_end_token".split()
)  # of the whole model, which stand in its text part, too
_OR_NULL = ("max_window_layers", "use_sliding_window")  # where null says as much as no key
_SECTIONS = ("mrope_section", "mrope_interleaved")
# The values that the classes of the text parts take where a config says nothing.
_DEFAULTS_2 = {
    **sizes(152064, 8192, 29568, 80, 64, 8, context=32768),
    "eos_token_id": 151645,
    "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
}
_DEFAULTS_3 = sizes(151936, 4096, 22016, 32, 32, 32, head_dim=128, context=128000)
_DEFAULTS_MOE = {
    **sizes(151936, 2048, 5632, 24, 16, 16, context=128000),
    "moe_intermediate_size": 1408,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
}


def _plain(config: Mapping[str, Any], defaults: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """Put the config of the text part into the words of its family, without sections of the rope."""
    given = {key: value for key, value in config.items() if value is not None or key not in _OR_NULL}
    known = {key: value for key, value in defaults.items() if value is not None}
    values = {key: value for key, value in {**known, **given}.items() if key not in _SEEN}
    older, newer = values.pop("rope_scaling", None), values.pop("rope_parameters", None)
    rope = older or newer or {}
    if not isinstance(rope, Mapping):
        raise CheckpointError(f"config.json: rope parameters must be an object with named values, not {brief(rope)}")
    rope = {key: value for key, value in rope.items() if key not in _SECTIONS}
    rope |= {key: "default" for key in ("type", "rope_type") if rope.get(key) == "mrope"}
    if rope.get("rope_theta") is None:
        beside = values.pop("rope_theta", None)
        rope["rope_theta"] = theta if beside is None else beside
    return {**values, "rope_parameters": rope}


def _plain_moe(config: Mapping[str, Any]) -> dict[str, Any]:
    experts = {} if {"num_experts", "num_local_experts"} & config.keys() else {"num_experts": 60}
    if config.get("norm_topk_prob") is False:
        raise CheckpointError("config.json: norm_topk_prob = False is not implemented: this family has it always")
    return {**experts, **_plain(config, _DEFAULTS_MOE, 5e5)}


def _in_gguf(name: str, of: str, read: Callable[[GGUFKeys], dict[str, Any]]) -> InGGUF:
    """Describe llama.cpp's architecture of the whole, whose files are read as files of the text part's family."""

    def read_text(keys: GGUFKeys) -> dict[str, Any]:
        keys.read.add(keys.name("rope.dimension_sections"))
        keys.count("n_deepstack_layers", 0, minimum=0)
        return read(keys) | {"model_type": of}

    return InGGUF(name, read=read_text)


def _seeing(family: Family, text: InnerTextModel, gguf: InGGUF) -> Family:
    return replace(family, text=replace(text, ignored=("vision_config", *_SEEN), tied=False), gguf=gguf)


_TEXT_2 = InnerTextModel(
    ("qwen2_vl_text",), is_flat=True, read_as="qwen2", words=lambda text: _plain(text, _DEFAULTS_2, 1e6)
)
_TEXT_3 = InnerTextModel(("qwen3_vl_text",), read_as="qwen3", words=lambda text: _plain(text, _DEFAULTS_3, 5e5))
_TEXT_MOE = InnerTextModel(("qwen3_vl_moe_text",), read_as="qwen3_moe", words=_plain_moe)
_TRANSPOSED = {name: f"{target} | transpose" for name, target in PACKED_EXPERTS.items()}
_PER_EXPERT = {name: target for name, target in QWEN3_MOE.names.items() if "{e}" in name}

QWEN2_VL = _seeing(QWEN2, _TEXT_2, _in_gguf("qwen2vl", "qwen2", like_llama))
QWEN2_5_VL = _seeing(QWEN2, replace(_TEXT_2, families=("qwen2_5_vl_text",)), _in_gguf("qwen2vl", "qwen2", like_llama))
QWEN3_VL = _seeing(QWEN3, _TEXT_3, _in_gguf("qwen3vl", "qwen3", like_llama_with_biases))
QWEN3_VL_MOE = replace(
    _seeing(QWEN3_MOE, _TEXT_MOE, _in_gguf("qwen3vlmoe", "qwen3_moe", lambda keys: read_gguf(keys, is_qwen3=True))),
    names={**{name: target for name, target in QWEN3_MOE.names.items() if name not in _PER_EXPERT}, **PACKED_EXPERTS},
    also={**_TRANSPOSED, **_PER_EXPERT},  # in published files the experts are transposed; transformers 5 writes `names`
)
