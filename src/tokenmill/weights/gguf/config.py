"""From GGUF's metadata to the config.json that Hugging Face would have.

Reading is strict, as it is for a config.json: every key of the architecture must be understood, since one that is not
may change the arithmetic. Some facts are not in the metadata and are taken from the tensors: whether there are biases,
whether the embeddings are tied, how wide GPT-2's MLP is. Reads headers only, never a tensor's data.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.text.vocab import end_token_ids
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief
from tokenmill.weights.gguf.header import Header

__all__ = ["ARCHITECTURES", "read_gguf_config"]

# Values of general.architecture; Mistral and Mixtral come as "llama", GPT-BigCode is "starcoder".
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gpt2", "gptneox", "starcoder")


def read_gguf_config(path: Path, header: Header, rope_factors: Sequence[float] | None = None) -> dict[str, Any]:
    """The config.json that the model would have. `rope_factors` are the values of rope_freqs.weight, if it has one."""
    keys = _Keys(path, header)
    if keys.arch == "gpt2":
        config = {"model_type": "gpt2", **_gpt2(keys), "activation_function": "gelu_new"}
    elif keys.arch == "starcoder":
        # Multi-query only: llama.cpp writes the rows of a multi-head file in another order than it reads them.
        keys.expect("attention.head_count_kv", [1], 1)
        config = {"model_type": "gpt_bigcode", **_gpt2(keys), "activation_function": "gelu_pytorch_tanh"}
        config["multi_query"] = True
    elif keys.arch == "gptneox":
        config = {"model_type": "gpt_neox", **_gpt_neox(keys, rope_factors)}
    elif keys.arch == "llama":
        config = _llama(keys, rope_factors)
    else:
        config = {"model_type": keys.arch, **_llama_shared(keys, rope_factors)}
    config |= _shared(keys)
    keys.done()
    return config


class _Keys(ValueReader):
    """Reads the architecture's keys, named without their prefix, and then insists that all were understood."""

    def __init__(self, path: Path, header: Header) -> None:
        super().__init__(header.metadata, str(path), CheckpointError)
        self.path, self.metadata, self.tensors = path, header.metadata, header.tensors
        self.arch = self.metadata.get("general.architecture")
        if self.arch not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise CheckpointError(
                f"{path}: general.architecture {brief(self.arch)} is not supported: use one of {known}"
            )
        for key, allowed in (("general.type", "model"), ("split.count", 1)):
            if self.metadata.get(key, allowed) != allowed:
                raise CheckpointError(
                    f"{path}: {key} = {brief(self.metadata[key])} is not supported, only {allowed!r} is"
                )

    def name(self, key: str) -> str:
        """With the architecture in front."""
        return f"{self.arch}.{key}"

    def take(self, key: str, default: Any = ...) -> Any:
        """See ValueReader. A list, which has one entry per layer, must be uniform."""
        value = super().take(key, default)
        if not isinstance(value, list):
            return value
        if not value or any(entry != value[0] for entry in value):
            what = f"{self.name(key)} differs by layer, which is not supported: {brief(value)}"
            raise CheckpointError(f"{self.path}: {what}")
        return value[0]

    def positive(self, key: str, default: Any = ...) -> float:
        """A number above 0, as the shortest decimal that is the same float32: 1e-05, not 9.99999974e-06."""
        return float(str(np.float32(self.number(key, default))))

    def rows(self, name: str) -> int:
        """How many rows a tensor has that every such model must have."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path} lacks a tensor that every {self.arch} model has", missing=[name])
        return self.tensors[name].shape[0]

    def done(self) -> None:
        """Raise if a key of the architecture was not read."""
        left = sorted(key for key in self.metadata if key.startswith(f"{self.arch}.") and key not in self.read)
        if left:
            values = ", ".join(f"{key} = {brief(self.metadata[key])}" for key in left)
            raise CheckpointError(f"{self.path}: the metadata has keys that tokenmill does not know: {values}")


def _llama(keys: _Keys, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """Llama, or one of the two that llama.cpp writes under its name: a window is Mistral's, experts are Mixtral's."""
    config = {"model_type": "llama", **_llama_shared(keys, rope_factors)}
    window = (
        keys.count("attention.sliding_window", maximum=MAX_POSITIONS)
        if keys.take("attention.sliding_window", 0)
        else None
    )
    if keys.take("expert_count", 0):
        config["model_type"] = "mixtral"
        config["num_local_experts"] = keys.count("expert_count")
        config["num_experts_per_tok"] = keys.count("expert_used_count")
        keys.expect("expert_feed_forward_length", [config["intermediate_size"]], config["intermediate_size"])
        keys.expect("expert_weights_norm", [True], True)
        keys.expect("expert_weights_scale", [1.0], 1.0)
        keys.expect("expert_gating_func", [gguf.ExpertGatingFuncType.SOFTMAX], gguf.ExpertGatingFuncType.SOFTMAX)
        config["sliding_window"] = window
    elif window is not None:
        config |= {"model_type": "mistral", "sliding_window": window}
    else:
        keys.expect("expert_used_count", [0], 0)
        config |= {"mlp_bias": True} if "blk.0.ffn_up.bias" in keys.tensors else {}
    return config


def _llama_shared(keys: _Keys, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    """What Llama, Mistral, Mixtral and Qwen have in common."""
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head_dim = keys.count("attention.key_length", hidden // heads)
    keys.expect("attention.value_length", [head_dim], head_dim)
    keys.expect("rope.dimension_count", [head_dim], head_dim)
    config = {
        "hidden_size": hidden,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.count("context_length", maximum=MAX_POSITIONS),
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.positive("rope.freq_base", 10000.0),
        **_rope_scaling(keys, head_dim, rope_factors),
    }
    # Qwen 2 always has these biases, and no key that says so.
    if keys.arch != "qwen2" and "blk.0.attn_q.bias" in keys.tensors:
        config["attention_bias"] = True
    return config


def _gpt_neox(keys: _Keys, rope_factors: Sequence[float] | None) -> dict[str, Any]:
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    keys.expect("attention.head_count_kv", [heads], heads)
    head_dim, rotary = hidden // heads, keys.count("rope.dimension_count")
    part = rotary / max(head_dim, 1)
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "hidden_act": "gelu",
        "max_position_embeddings": keys.count("context_length", maximum=MAX_POSITIONS),
        "layer_norm_eps": keys.positive("attention.layer_norm_epsilon"),
        # Readers multiply and cut off: the rounding of the division must not cost an entry.
        "rotary_pct": part if int(head_dim * part) == rotary else math.nextafter(part, 2),
        "rotary_emb_base": keys.positive("rope.freq_base", 10000.0),
        "use_parallel_residual": keys.expect("use_parallel_residual", [True, False], True),
        "attention_bias": "blk.0.attn_qkv.bias" in keys.tensors,
        **_rope_scaling(keys, rotary, rope_factors),
    }


def _gpt2(keys: _Keys) -> dict[str, Any]:
    """What GPT-2 and StarCoder have in common."""
    heads = keys.count("attention.head_count")
    if keys.arch == "gpt2":
        keys.expect("attention.head_count_kv", [heads], heads)
    keys.take("feed_forward_length", None)  # llama.cpp writes four times the width, whatever it is
    return {
        "n_embd": keys.count("embedding_length"),
        "n_layer": keys.count("block_count"),
        "n_head": heads,
        "n_positions": keys.count("context_length", maximum=MAX_POSITIONS),
        "n_inner": keys.rows("blk.0.ffn_up.weight"),
        "layer_norm_epsilon": keys.positive("attention.layer_norm_epsilon"),
    }


def _rope_scaling(keys: _Keys, rotary: int, factors: Sequence[float] | None) -> dict[str, Any]:
    """`rope_scaling` in Hugging Face's words, or nothing. "factors" is ours: divisors of the frequencies, in order."""
    kind = keys.expect("rope.scaling.type", ["none", "linear", "yarn"], "none")
    keys.take("rope.scaling.finetuned", None)  # a remark about the training
    if factors is not None:
        if kind != "none" or len(factors) != rotary // 2 or not all(0 < f < math.inf for f in factors):
            wanted = f"{rotary // 2} positive numbers and no rope.scaling.type"
            raise CheckpointError(f"{keys.path}: rope_freqs.weight has {len(factors)}, needed are {wanted}")
        return {"rope_scaling": {"rope_type": "factors", "factors": list(factors)}}
    if kind == "none":
        keys.expect("rope.scaling.factor", [0.0, 1.0], 1.0)
        return {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": keys.positive("rope.scaling.factor")}
    if kind == "yarn":
        lengths = partial(keys.count, maximum=MAX_POSITIONS)
        keys.expect("rope.scaling.yarn_ext_factor", [1.0], 1.0)
        for key, name in (
            ("original_context_length", "original_max_position_embeddings"),
            ("yarn_attn_factor", "attention_factor"),
            ("yarn_beta_fast", "beta_fast"),
            ("yarn_beta_slow", "beta_slow"),
        ):
            if keys.take(f"rope.scaling.{key}", None) is not None:
                read = lengths if key == "original_context_length" else keys.positive
                scaling[name] = read(f"rope.scaling.{key}")
    return {"rope_scaling": scaling}


def _shared(keys: _Keys) -> dict[str, Any]:
    """What every family has."""
    keys.expect("attention.causal", [True], True)
    keys.take("tensor_data_layout", None)  # a remark about where the file came from
    vocab_size = keys.rows("token_embd.weight")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    for name, count in (
        (f"{keys.arch}.vocab_size", keys.take("vocab_size", vocab_size)),
        ("the number of tokenizer.ggml.tokens", len(tokens) if isinstance(tokens, list) else vocab_size),
    ):
        if count != vocab_size:
            raise CheckpointError(f"{keys.path}: {name} is {brief(count)}, but token_embd.weight has {vocab_size} rows")
    end_ids = end_token_ids(keys.metadata)
    num_layers = len({name.split(".")[1] for name in keys.tensors if name.startswith("blk.")})
    if keys.count("block_count") != num_layers:
        claimed = keys.count("block_count")
        raise CheckpointError(f"{keys.path}: block_count is {claimed}, but there are tensors of {num_layers} layers")
    return {
        "vocab_size": vocab_size,
        "tie_word_embeddings": "output.weight" not in keys.tensors,
        "bos_token_id": keys.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": end_ids if len(end_ids) > 1 else next(iter(end_ids), None),
        "torch_dtype": _dtype(keys),
    }


def _dtype(keys: _Keys) -> str:
    """The floating type that all matrices have; bfloat16 for mixed and quantised files."""
    types = {info.type.name for info in keys.tensors.values() if len(info.shape) > 1}
    names = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    return names.get(types.pop(), "bfloat16") if len(types) == 1 else "bfloat16"
