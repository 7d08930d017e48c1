"""The metadata of a GGUF file that describe a model, read back and compared: the inverse of weights/gguf/config.py.

All facts of a model must follow from these keys for every reader. So the keys are read back, and a model whose config
would then differ is refused by field: GGUF's architectures have no key for most departures.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import Any

import gguf
import torch

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.model.families import gguf_facts, read_config
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.model.per_layer import held_in_memory
from tokenmill.model.rope import SCALES
from tokenmill.model.rope_config import yarn_attention_factor
from tokenmill.weights.gguf.config import ROPE_FREQS, read_gguf_config
from tokenmill.weights.gguf.header import Header, TensorInfo

# Fields that say nothing of the arithmetic, or that the tokenizer and the types of the tensors tell.
_MAY_DIFFER = {"family", "dtype", "codes", "code_bits", "compact_bits", "embedding_bits", "eos_token_ids"}
_YARN = {"attention_factor": "yarn_attn_factor", "beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}


def metadata_of(model: ModelConfig) -> dict[str, Any]:
    """Make the keys of the architecture, with its name before each."""
    pairs: dict[str, Any] = {
        "block_count": model.num_layers,
        "context_length": model.max_position_embeddings,
        "embedding_length": model.hidden_size,
        "feed_forward_length": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "attention.head_count": model.num_heads,
        "attention.head_count_kv": model.num_kv_heads,
    }
    if model.norm == "rms":
        pairs |= {"attention.layer_norm_rms_epsilon": model.norm_eps}
        pairs |= dict.fromkeys(("attention.key_length", "attention.value_length"), model.head_dim)
    else:
        pairs |= {"attention.layer_norm_epsilon": model.norm_eps}
    if model.num_experts:
        pairs |= {"expert_count": model.num_experts, "expert_used_count": model.num_experts_per_token}
    facts = gguf_facts(model.family)
    pairs |= facts.metadata(model)
    if model.rope is not None:
        pairs |= {"rope.dimension_count": model.rope.dim, "rope.freq_base": model.rope.theta} | _scaling(model)
    arch = pairs.pop("general.architecture", facts.architecture)
    named = {key if key.startswith("xielu.") else f"{arch}.{key}": value for key, value in pairs.items()}
    return {"general.architecture": arch, **named}


def lists_of(model: ModelConfig) -> dict[str, list[float]]:
    """Make the tensors that hold numbers of the config, by name."""
    return rope_lists(model.rope) | gguf_facts(model.family).lists(model)


def rope_lists(rope: Rope | None) -> dict[str, list[float]]:
    """Make the tensors that divide the frequencies of a rope, where it is not one of GGUF's own kinds, by name."""
    numbers = {} if rope is None else dict(rope.scaling)
    if rope is not None and rope.kind == "longrope":
        return {f"rope_factors_{name}.weight": list(numbers[f"{name}_factor"]) for name in ("long", "short")}
    factors = _rope_factors(rope, numbers)
    return {} if factors is None else {ROPE_FREQS: factors}


def _rope_factors(rope: Rope | None, numbers: dict[str, Any]) -> list[float] | None:
    if rope is not None and rope.kind == "proportional":
        turned = int(numbers["partial_rotary_factor"] * rope.dim // 2)
        return [1.0] * turned + [1e30] * (rope.dim // 2 - turned)
    if rope is None or rope.kind not in ("llama3", "factors"):
        return None
    if rope.kind == "factors":
        return list(numbers["factors"])
    plain = 1.0 / rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float64) / rope.dim)
    return [float(factor) for factor in (plain / SCALES["llama3"](plain, numbers)).float()]


def check_read_back(path: Path, model: ModelConfig, metadata: Mapping[str, Any], infos: Sequence[TensorInfo]) -> None:
    """Raise ConfigError, by field, for a model that a reader of these keys would take for a different one."""
    lists = lists_of(model)
    factors = lists.get(ROPE_FREQS)
    try:
        header = Header(dict(metadata), {info.name: info for info in infos}, 0)
        again = read_config(read_gguf_config(path, header, lists, warn=lambda *_: None))
    except CheckpointError as error:
        raise ConfigError("model", model.family, f"one that GGUF can describe: {error}") from error
    model, again = held_in_memory(model), held_in_memory(again)
    if factors is not None and model.rope is not None and model.rope.kind != "proportional":
        model = _with_rope(model, replace(model.rope, kind="factors", scaling=(("factors", tuple(factors)),)))
    names = [entry.name for entry in fields(model) if entry.name not in _MAY_DIFFER]
    told = (_difference(name, getattr(model, name), getattr(again, name)) for name in names)
    if differ := [each for each in told if each]:
        raise ConfigError("model", model.family, f"one that GGUF can describe; it has no key for {'; '.join(differ)}")


def _with_rope(model: ModelConfig, rope: Rope) -> ModelConfig:
    """Replace the model's rope wherever a layer has it."""
    ropes = tuple(rope if each == model.rope else each for each in model.ropes)
    is_same = [isinstance(mixer, AttentionBlock) and mixer.rope == model.rope for mixer in model.mixers]
    pairs = zip(model.mixers, is_same, strict=True)
    return replace(
        model,
        rope=rope,
        ropes=ropes,
        mixers=tuple(replace(mixer, rope=rope) if same else mixer for mixer, same in pairs),
    )


def write_header(path: Path, metadata: Mapping[str, Any], infos: Sequence[TensorInfo]) -> None:
    """Write everything before the tensors' data, which begins at the next multiple of the alignment."""
    writer = gguf.GGUFWriter(None, metadata["general.architecture"])
    for key, value in metadata.items():
        if key != "general.architecture":  # which the writer has added
            ADD[type(value)](writer, key, value)
    for info in infos:
        writer.add_tensor_info(info.name, info.shape, None, info.num_bytes, info.type)
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


ADD = {
    bool: gguf.GGUFWriter.add_bool,
    int: gguf.GGUFWriter.add_uint32,
    float: gguf.GGUFWriter.add_float32,
    str: gguf.GGUFWriter.add_string,
    list: gguf.GGUFWriter.add_array,
}
"""The writer's methods, by the type of a key's value."""


def _scaling(model: ModelConfig) -> dict[str, Any]:
    """Make rope.scaling for the two kinds that GGUF names; check_read_back finds the losses of other kinds."""
    rope = model.rope
    numbers = {} if rope is None else dict(rope.scaling)
    if rope is None or rope.kind not in ("linear", "yarn") or "factor" not in numbers:
        return {}
    pairs: dict[str, Any] = {"type": rope.kind, "factor": float(numbers["factor"])}
    if rope.kind == "yarn":
        pairs |= {"original_context_length": numbers["original_max_position_embeddings"]}
        others = _unusual_yarn(rope)
        told = "attention_factor" in gguf_facts(model.family).yarn  # by another key, which its family writes
        pairs |= {_YARN[name]: float(v) for name, v in others.items() if not (told and name == "attention_factor")}
    return {f"rope.scaling.{key}": value for key, value in pairs.items()}


def unread_yarn(model: ModelConfig) -> dict[str, float]:
    """Find numbers of YaRN that llama.cpp replaces by others, whatever a file says. It rounds the ramp's bounds,
    too.
    """
    known = gguf_facts(model.family).yarn
    found = {name: value for name, value in _unusual_yarn(model.rope).items() if name not in known}
    exact = model.rope is not None and dict(model.rope.scaling).get("truncate") is False
    return found | ({"truncate": False} if exact else {})


def _unusual_yarn(rope: Rope | None) -> dict[str, float]:
    if rope is None or rope.kind != "yarn":
        return {}
    numbers = dict(rope.scaling)
    usual = {"attention_factor": yarn_attention_factor(numbers["factor"]), "beta_fast": 32.0, "beta_slow": 1.0}
    return {
        name: numbers[name] for name, value in usual.items() if not math.isclose(numbers[name], value, rel_tol=1e-6)
    }


def _difference(name: str, have: Any, found: Any) -> str:
    """Tell how two values differ, of lists of parts the first part alone; nothing where they are the same."""
    parts: list[tuple[str, Any, Any]] = []
    if (
        isinstance(have, tuple)
        and isinstance(found, tuple)
        and len(have) == len(found)
        and any(map(is_dataclass, have))
    ):
        parts = [(f"{name}[{place}]", *pair) for place, pair in enumerate(zip(have, found, strict=True))]
    elif is_dataclass(have) and type(have) is type(found):
        pairs = [(entry.name, getattr(have, entry.name), getattr(found, entry.name)) for entry in fields(have)]
        if any(is_dataclass(value) for _, value, _ in pairs):
            parts = [(f"{name}.{inner}", value, other) for inner, value, other in pairs]
    if parts:
        return next((told for told in starmap(_difference, parts) if told), "")
    return "" if _same(have, found) else f"{name} = {have!r}, read as {found!r}"


def _same(have: Any, found: Any) -> bool:
    """Compare two values, except for the rounding of numbers to 32 bits."""
    if is_dataclass(have) and type(have) is type(found):
        return all(_same(getattr(have, entry.name), getattr(found, entry.name)) for entry in fields(have))
    if isinstance(have, tuple) and isinstance(found, tuple):
        return len(have) == len(found) and all(map(_same, have, found))
    if isinstance(have, float) and isinstance(found, float):
        return math.isclose(have, found, rel_tol=1e-6)
    return bool(have == found)
