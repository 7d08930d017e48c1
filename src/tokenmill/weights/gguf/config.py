"""GGUF metadata under the keys of Hugging Face's config.json.

Reading is strict, as it is for a config.json: every key of the architecture must be understood, since a key that is not
may change the arithmetic. Keys that one architecture alone has are read by its family (model/families/). Some facts are
not in the metadata and are taken from the tensors: whether there are biases, whether the embeddings are tied. Headers
alone are read, never a tensor's data.
"""

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.families import architectures, find_family, gguf_facts
from tokenmill.model.families.in_gguf import GGUFKeys, Warn
from tokenmill.model.families.mtp import NUM_MTP, has_mtp_alone
from tokenmill.model.families.refused import features_of_keys, why_not
from tokenmill.model.rope_config import yarn_attention_factor
from tokenmill.text.vocab import end_token_ids
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief
from tokenmill.weights.gguf.header import FLOATS, Header
from tokenmill.weights.gguf.neutral import is_neutral, warn_of_unknown

ROPE_FREQS = "rope_freqs.weight"
ROPE_LISTS = (ROPE_FREQS, "rope_factors_long.weight", "rope_factors_short.weight")
log = logging.getLogger(__name__)

_ALWAYS_F32 = (
    "position_embd.weight",
    ".ffn_gate_inp.weight",
    ".ffn_gate_inp_shexp.weight",
    ".bias",
    ".shortconv.conv.weight",
    ".ssm_conv1d.weight",
    ".ssm_a",
    ".ssm_d",
    ".ssm_norm.weight",
)
"""Tensors of two dimensions that llama.cpp wants in F32, whatever the type of the model."""
_YARN = {"yarn_beta_fast": ("beta_fast", 32.0), "yarn_beta_slow": ("beta_slow", 1.0)}
"""GGUF's key → Hugging Face's, and the value with which llama.cpp computes, whatever the file says."""


def listed(header: Header) -> list[str]:
    """List the tensors that hold numbers of the config: of ropes, and those that the architecture's family names."""
    family = architectures().get(str(header.metadata.get("general.architecture")))
    own = () if family is None else gguf_facts(family).ignored
    forms = [re.compile(re.escape(pattern).replace(r"\{i\}", r"\d+")) for pattern in own if "{i}" in pattern]
    return [name for name in header.tensors if name in ROPE_LISTS or any(form.fullmatch(name) for form in forms)]


def read_gguf_config(
    path: Path, header: Header, rope_lists: Mapping[str, Sequence[float]] | None = None, warn: Warn = log.warning
) -> dict[str, Any]:
    """Make the config.json that the model would have.

    rope_lists: the values of those tensors among ROPE_LISTS that the file has. warn: is told, as a format and its
    values, where llama.cpp computes otherwise.
    """
    arch = _architecture(path, header)
    family = architectures()[arch]
    rope_lists = rope_lists or {}
    keys = GGUFKeys(path, header.metadata, header.tensors, warn, family, arch, rope_lists)
    config = gguf_facts(family).read(keys) | _shared(keys, header)
    if keys.num_rotary is not None:
        scaling, own = _rope_scaling(keys, keys.num_rotary, rope_lists.get(ROPE_FREQS)), config.pop("rope_scaling", {})
        config |= {key: {**value, **own} for key, value in scaling.items()}
    others = (key.removeprefix(keys.prefix) for key in keys.values.keys() - keys.read if key.startswith(keys.prefix))
    keys.refuse_unread(keys.name(key) for key in others if not is_neutral(key, keys.values, keys.arch))
    warn_of_unknown(str(path), keys.values, warn)
    return config


def _architecture(path: Path, header: Header) -> str:
    general = ValueReader(header.metadata, str(path), CheckpointError)
    arch, known = general.text("general.architecture"), architectures().keys()
    if arch not in known:
        own = {key.removeprefix(f"{arch}."): value for key, value in header.metadata.items()}
        raise CheckpointError(f"{path}: general.architecture = {why_not(arch, known, features_of_keys(own))}")
    if general.take("general.type", "model") == "adapter":
        raise CheckpointError(f"{path} is an adapter, not a model: give the model, and this file with --adapter")
    general.expect("general.type", "model")
    return arch


def _rope_scaling(keys: GGUFKeys, rotary: int, factors: Sequence[float] | None) -> dict[str, Any]:
    """Read `rope_scaling` in Hugging Face's words, if there is any. "factors" is ours: divisors of the frequencies."""
    kind = keys.expect("rope.scaling.type", "linear", "none", "yarn")
    keys.take("rope.scaling.finetuned", None)  # a remark about the training
    stretch = _stretch(keys)
    is_none = kind == "none" or (kind == "linear" and stretch == 1.0)
    if factors is not None and not (is_none and len(factors) == rotary // 2 and all(0 < f < math.inf for f in factors)):
        wanted = f"{rotary // 2} positive numbers and no rope.scaling.type"
        raise CheckpointError(f"{keys.where}: rope_freqs.weight has {len(factors)}, needed are {wanted}")
    if is_none:
        for key in ("original_context_length", "yarn_attn_factor", "yarn_ext_factor", *_YARN):
            keys.take(f"rope.scaling.{key}", None)  # of YaRN alone
        return {} if factors is None else {"rope_scaling": {"rope_type": "factors", "factors": list(factors)}}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": stretch}
    if kind == "yarn":
        original = keys.count("rope.scaling.original_context_length", None, maximum=MAX_POSITIONS)
        scaling |= {} if original is None else {"original_max_position_embeddings": original}
        scaling |= _yarn_numbers(keys, scaling["factor"])
    return {"rope_scaling": scaling}


def _stretch(keys: GGUFKeys) -> float:
    """Read the factor of a scaling, whose key had another name once. llama.cpp writes 0 where there is no scaling."""
    old, new = (keys.take(key, None) for key in ("rope.scale_linear", "rope.scaling.factor"))
    key = "rope.scaling.factor" if new is not None else "rope.scale_linear"
    return 1.0 if (old if new is None else new) == 0 else keys.positive(key, 1.0)


def _yarn_numbers(keys: GGUFKeys, stretch: float) -> dict[str, float]:
    """Read the numbers of YaRN that llama.cpp's converter writes and llama.cpp does not read for these architectures.

    yarn_attn_factor is either Hugging Face's attention_factor, which replaces 0.1 ln(stretch) + 1, or DeepSeek's
    attn_factor, which is 1 / (0.1 ln(stretch) + 1) where the original multiplies 0.1 ln(stretch) + 1 by itself:
    transformers and llama.cpp both leave DeepSeek's out.
    """
    usual = yarn_attention_factor(stretch)
    entries = {**_YARN, "yarn_attn_factor": ("attention_factor", usual)}
    given: dict[str, float | None] = {key: keys.positive(f"rope.scaling.{key}", None) for key in entries}
    factor = given["yarn_attn_factor"]
    extrapolation = keys.take("rope.scaling.yarn_ext_factor", None)
    is_default = extrapolation == -1.0 and factor == 1.0  # as llama.cpp itself writes a file, for "not set"
    if factor is not None and (is_default or math.isclose(factor, 1 / usual, rel_tol=1e-4)):
        given["yarn_attn_factor"] = None
    used = {key: value for key, value in given.items() if value is not None}
    other = {key: value for key, value in used.items() if not math.isclose(value, entries[key][1], rel_tol=1e-4)}
    other = {key: value for key, value in other.items() if entries[key][0] not in gguf_facts(keys.family).yarn}
    if other:
        keys.warn("%s: %s is used as transformers does; llama.cpp ignores it", keys.where, brief(other))
    if extrapolation not in (None, 1.0, -1.0):
        ignored = brief(extrapolation)
        keys.warn("%s: rope.scaling.yarn_ext_factor = %s has no effect, as in llama.cpp", keys.where, ignored)
    return {entries[key][0]: value for key, value in used.items()}


def _shared(keys: GGUFKeys, header: Header) -> dict[str, Any]:
    facts = gguf_facts(keys.family)
    keys.expect("attention.causal", not (facts.encodes or keys.arch == facts.encoder))
    keys.read.update(keys.name(f"classifier.{key}") for key in ("output_labels", "pooling_type"))  # see pooling.py
    keys.take("pooling_type", None)  # see pooling.py
    keys.take("tensor_data_layout", None)  # a remark about where the file came from
    vocab_size = keys.rows("token_embd.weight")
    tokens = keys.values.get("tokenizer.ggml.tokens")
    counts = {f"{keys.arch}.vocab_size": keys.take("vocab_size", vocab_size)}
    counts |= {"the number of tokenizer.ggml.tokens": len(tokens)} if isinstance(tokens, list) else {}
    for name, count in counts.items():
        if count != vocab_size:
            rows = f"but token_embd.weight has {vocab_size} rows"
            raise CheckpointError(f"{keys.where}: {name} is {brief(count)}, {rows}")
    claimed, layers = keys.count("block_count"), {n.split(".")[1] for n in keys.tensors if n.startswith("blk.")}
    if claimed != len(layers) and not has_mtp_alone(keys.tensors):
        raise CheckpointError(f"{keys.where}: block_count is {claimed}, but there are tensors of {len(layers)} layers")
    further = keys.values.get(keys.name("nextn_predict_layers"), 1) if facts.further else 1
    end_ids = end_token_ids(keys.values)
    pad_id = keys.values.get("tokenizer.ggml.padding_token_id")
    types = {i.type for name, i in header.tensors.items() if len(i.shape) > 1 and not name.endswith(_ALWAYS_F32)}
    own = find_family({"model_type": keys.family}).keys.get(NUM_MTP, NUM_MTP)
    return ({own: further} if further != 1 else {}) | {
        "vocab_size": vocab_size,
        "tie_word_embeddings": "output.weight" not in keys.tensors,
        "bos_token_id": keys.values.get("tokenizer.ggml.bos_token_id"),
        # Where a config has no pad_token_id, transformers takes its family's own, which may lie outside the vocabulary.
        "pad_token_id": pad_id if isinstance(pad_id, int) and pad_id < vocab_size else None,
        "eos_token_id": end_ids if len(end_ids) > 1 else next(iter(end_ids), None),
        # The floating type that all other matrices have; mixed and quantised files count as bfloat16.
        "torch_dtype": FLOATS.get(types.pop(), "bfloat16") if len(types) == 1 else "bfloat16",
    }
