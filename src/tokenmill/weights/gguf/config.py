"""GGUF metadata under the keys of Hugging Face's config.json.

Reading is strict, as it is for a config.json: every key of the architecture must be understood, since one that is not
may change the arithmetic. Some facts are not in the metadata and are taken from the tensors: whether there are biases,
whether the embeddings are tied, how wide GPT-2's MLP is. Reads headers only, never a tensor's data.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.model.families import architectures, gguf_facts
from tokenmill.model.rope_config import yarn_attention_factor
from tokenmill.text.vocab import end_token_ids
from tokenmill.value_reader import MAX_COUNT, MAX_POSITIONS, ValueReader, brief
from tokenmill.weights.gguf.header import Header
from tokenmill.weights.gguf.kinds import FLOATS
from tokenmill.weights.gguf.neutral import is_neutral, warn_of_unknown

log = logging.getLogger(__name__)
Warn = Callable[..., None]

# GGUF's key → Hugging Face's, of sizes that only have another name.
_SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
_GPT_SIZES = {
    "embedding_length": "n_embd",
    "block_count": "n_layer",
    "attention.head_count": "n_head",
    "context_length": "n_positions",
}
_YARN = {"yarn_beta_fast": ("beta_fast", 32.0), "yarn_beta_slow": ("beta_slow", 1.0)}
"""GGUF's key → Hugging Face's, and the value with which llama.cpp computes, whatever the file says."""


def read_gguf_config(
    path: Path, header: Header, rope_factors: Sequence[float] | None = None, warn: Warn = log.warning
) -> dict[str, Any]:
    """The config.json that the model would have. `rope_factors` are the values of rope_freqs.weight, if it has one.

    warn: is told, as a format and its values, where llama.cpp computes otherwise.
    """
    keys = _Keys(path, header, rope_factors, warn)
    config = _READERS.get(keys.arch, _like_llama)(keys) | _shared(keys)
    own = (key.removeprefix(keys.prefix) for key in keys.values.keys() - keys.read if key.startswith(keys.prefix))
    keys.refuse_unread(keys.name(key) for key in own if not is_neutral(key, keys.values, keys.arch))
    warn_of_unknown(str(path), keys.values, keys.values, warn)
    return config


class _Keys(ValueReader):
    """Reads the architecture's keys, which are named without it."""

    def __init__(self, path: Path, header: Header, rope_factors: Sequence[float] | None, warn: Warn) -> None:
        general = ValueReader(header.metadata, str(path), CheckpointError)
        self.arch = general.expect("general.architecture", ..., *dict.fromkeys(architectures().values()))
        general.expect("general.type", "model")
        if general.count("split.count", 1, minimum=0) > 1:
            raise CheckpointError(
                f"{path} is one of {general.values['split.count']} parts of a model: join them first with llama.cpp's "
                "`llama-gguf-split --merge FIRST-PART.gguf WHOLE.gguf`"
            )
        super().__init__(header.metadata, str(path), CheckpointError, f"{self.arch}.")
        self.tensors, self.rope_factors, self.warn = header.tensors, rope_factors, warn

    def take(self, key: str, default: Any = ...) -> Any:
        """See ValueReader. A list, which has one entry per layer, must be uniform."""
        value = super().take(key, default)
        if not isinstance(value, list):
            return value
        if not value or any(entry != value[0] for entry in value):
            raise self.refuse(key, value, "it differs by layer")
        return value[0]

    def sizes(self, names: Mapping[str, str]) -> dict[str, int]:
        longest = {"context_length": MAX_POSITIONS}
        return {name: self.count(key, maximum=longest.get(key, MAX_COUNT)) for key, name in names.items()}

    def positive(self, key: str, default: Any = ...) -> float:
        """A number above 0, as the shortest decimal that is the same float32: 1e-05, not 9.99999974e-06."""
        value = self.number(key, default)
        return value if value is None else float(str(np.float32(value)))

    def rows(self, name: str) -> int:
        """How many rows a tensor has that every such model must have."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.where} lacks a tensor that every {self.arch} model has", missing=[name])
        return self.tensors[name].shape[0]


def _like_llama(keys: _Keys) -> dict[str, Any]:
    """What Llama, Mistral, Mixtral and Qwen have in common."""
    sizes = keys.sizes(_SIZES)
    heads = sizes["num_attention_heads"]
    head_dim = keys.count("attention.key_length", sizes["hidden_size"] // heads)
    _expect_head_dim(keys, head_dim)
    keys.expect("rope.dimension_count", head_dim)
    family = next(name for name, architecture in architectures().items() if architecture == keys.arch)
    bias = gguf_facts(family).says_biases and "blk.0.attn_q.bias" in keys.tensors
    return {
        "model_type": family,
        **sizes,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.positive("rope.freq_base", 10000.0),
        **_rope_scaling(keys, head_dim),
        **({"attention_bias": True} if bias else {}),
    }


def _llama(keys: _Keys) -> dict[str, Any]:
    """Llama, or one of the two that llama.cpp writes under its name: a window is Mistral's, experts are Mixtral's."""
    config = _like_llama(keys)
    window = keys.count("attention.sliding_window", 0, minimum=0, maximum=MAX_POSITIONS) or None
    if keys.take("expert_count", 0):
        # llama.cpp reads none of these for this architecture, and writes 0 and false for them.
        keys.expect("expert_feed_forward_length", config["intermediate_size"], 0)
        keys.expect("expert_weights_norm", True, False)
        keys.expect("expert_weights_scale", 1.0, 0.0)
        keys.expect("expert_gating_func", gguf.ExpertGatingFuncType.SOFTMAX, 0)
        experts = {"num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count"}
        counts = {name: keys.count(key) for name, key in experts.items()}
        return config | {"model_type": "mixtral", **counts, "sliding_window": window}
    if window is not None:
        return config | {"model_type": "mistral", "sliding_window": window}
    keys.expect("expert_used_count", 0)
    return config | ({"mlp_bias": True} if "blk.0.ffn_up.bias" in keys.tensors else {})


def _gpt_neox(keys: _Keys) -> dict[str, Any]:
    sizes = keys.sizes(_SIZES)
    heads = sizes["num_attention_heads"]
    keys.expect("attention.head_count_kv", heads)
    head_dim, rotary = sizes["hidden_size"] // heads, keys.count("rope.dimension_count")
    _expect_head_dim(keys, head_dim)
    part = rotary / max(head_dim, 1)
    return {
        "model_type": "gpt_neox",
        **sizes,
        "hidden_act": "gelu",
        "layer_norm_eps": keys.positive("attention.layer_norm_epsilon"),
        # Readers multiply and cut off: the rounding of the division must not cost an entry.
        "rotary_pct": part if int(head_dim * part) == rotary else math.nextafter(part, 2),
        "rotary_emb_base": keys.positive("rope.freq_base", 10000.0),
        "use_parallel_residual": keys.expect("use_parallel_residual", True, False),
        "attention_bias": "blk.0.attn_qkv.bias" in keys.tensors,
        **_rope_scaling(keys, rotary),
    }


def _expect_head_dim(keys: _Keys, head_dim: int) -> None:
    for key in ("attention.key_length", "attention.value_length"):
        keys.expect(key, head_dim)


def _gpt(keys: _Keys) -> dict[str, Any]:
    keys.take("feed_forward_length", None)  # llama.cpp writes four times the width, whatever it is
    for key in [key for key in keys.values if key.startswith(f"{keys.prefix}rope.")]:
        keys.take(key.removeprefix(keys.prefix))  # positions are learned
    config: dict[str, Any] = {
        **keys.sizes(_GPT_SIZES),
        "n_inner": keys.rows("blk.0.ffn_up.weight"),
        "layer_norm_epsilon": keys.positive("attention.layer_norm_epsilon"),
    }
    _expect_head_dim(keys, config["n_embd"] // config["n_head"])
    if keys.arch == "gpt2":
        keys.expect("attention.head_count_kv", config["n_head"])
        return config | {"model_type": "gpt2", "activation_function": "gelu_new"}
    # Multi-query only: llama.cpp writes the rows of a multi-head file in another order than it reads them.
    keys.expect("attention.head_count_kv", 1)
    return config | {"model_type": "gpt_bigcode", "activation_function": "gelu_pytorch_tanh", "multi_query": True}


# By general.architecture; others are read as Llama is.
_READERS: dict[str, Callable[[_Keys], dict[str, Any]]] = {
    "llama": _llama,
    "gpt2": _gpt,
    "gptneox": _gpt_neox,
    "starcoder": _gpt,
}


def _rope_scaling(keys: _Keys, rotary: int) -> dict[str, Any]:
    """`rope_scaling` in Hugging Face's words, or nothing. "factors" is ours: divisors of the frequencies, in order."""
    kind = keys.expect("rope.scaling.type", "linear", "none", "yarn")
    keys.take("rope.scaling.finetuned", None)  # a remark about the training
    stretch, factors = _stretch(keys), keys.rope_factors
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


def _stretch(keys: _Keys) -> float:
    """The factor of a scaling, whose key had another name once. Where there is none llama.cpp writes 0."""
    old, new = (keys.take(key, None) for key in ("rope.scale_linear", "rope.scaling.factor"))
    key = "rope.scaling.factor" if new is not None else "rope.scale_linear"
    return 1.0 if (old if new is None else new) == 0 else keys.positive(key, 1.0)


def _yarn_numbers(keys: _Keys, stretch: float) -> dict[str, float]:
    """The numbers of YaRN that llama.cpp's converter writes and llama.cpp does not read for these architectures.

    yarn_attn_factor is either Hugging Face's attention_factor, which replaces 0.1 ln(stretch) + 1, or DeepSeek's
    attn_factor, which is 1 / (0.1 ln(stretch) + 1) where the original multiplies that by itself: transformers and
    llama.cpp both leave the latter out.
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
    if other:
        keys.warn("%s: %s is used as transformers does; llama.cpp ignores it", keys.where, brief(other))
    if extrapolation not in (None, 1.0, -1.0):
        ignored = brief(extrapolation)
        keys.warn("%s: rope.scaling.yarn_ext_factor = %s has no effect, as in llama.cpp", keys.where, ignored)
    return {entries[key][0]: value for key, value in used.items()}


def _shared(keys: _Keys) -> dict[str, Any]:
    keys.expect("attention.causal", True)
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
    if claimed != len(layers):
        raise CheckpointError(f"{keys.where}: block_count is {claimed}, but there are tensors of {len(layers)} layers")
    end_ids = end_token_ids(keys.values)
    types = {info.type for info in keys.tensors.values() if len(info.shape) > 1}
    return {
        "vocab_size": vocab_size,
        "tie_word_embeddings": "output.weight" not in keys.tensors,
        "bos_token_id": keys.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids if len(end_ids) > 1 else next(iter(end_ids), None),
        # The floating type that all matrices have; mixed and quantised files count as bfloat16.
        "torch_dtype": FLOATS.get(types.pop(), "bfloat16") if len(types) == 1 else "bfloat16",
    }
