"""The metadata of a GGUF file's architecture as it is read, and the parts of it that several architectures share.

A family makes a config of them in the words of Hugging Face's config.json, so that one reader of configs makes the
model of either. weights/gguf/ reads what all architectures share: sizes of the vocabulary, scaling of rope, end tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.model.config import MAX_LAYERS, ModelConfig
from tokenmill.value_reader import MAX_COUNT, MAX_POSITIONS, ValueReader

Warn = Callable[..., None]
FULL, SLIDING = "full_attention", "sliding_attention"

SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
"""GGUF's key → Hugging Face's, of sizes that only have another name."""


class _Described(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class GGUFKeys(ValueReader):
    """Reads the architecture's keys, which are named without it.

    family: the plain family among those that share the architecture. tensors: of the file, by GGUF's names. warn: is
    told, as a format and its values, where llama.cpp computes otherwise. rope_lists: the values of tensors that divide
    the frequencies of the rope, by their names. num_rotary: the number of a head's entries that are rotated, once
    `rotary` was called; None for a model without rope.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, _Described],
        warn: Warn,
        family: str,
        arch: str,
        rope_lists: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        super().__init__(metadata, str(path), CheckpointError, f"{arch}.")
        self.tensors, self.warn, self.family, self.arch = tensors, warn, family, arch
        self.rope_lists = rope_lists or {}
        self.num_rotary: int | None = None

    def take(self, key: str, default: Any = ...) -> Any:
        """See ValueReader. A list, which has one entry per layer, must be uniform."""
        value = super().take(key, default)
        if not isinstance(value, list):
            return value
        if not value or any(entry != value[0] for entry in value):
            raise self.refuse(key, value, "it differs by layer")
        return value[0]

    def layer_types(self, num_layers: int, pattern: int) -> list[str]:
        """Read which layers have a window: all but the last of `pattern`, unless a key has another pattern, or a list
        of the layers (llama.cpp's load_swa_pattern).
        """
        key = "attention.sliding_window_pattern"
        given = super().take(key, None)
        if isinstance(given, list):
            if len(given) != num_layers or not all(isinstance(entry, bool | int) for entry in given):
                raise self.refuse(key, given, f"true or false for each of {num_layers} layers")
            return [SLIDING if entry else FULL for entry in given]
        return layer_types(num_layers, self.count(key, pattern, 0, MAX_LAYERS))

    def sizes(self, names: Mapping[str, str] = SIZES) -> dict[str, int]:
        longest = {"context_length": MAX_POSITIONS}
        return {name: self.count(key, maximum=longest.get(key, MAX_COUNT)) for key, name in names.items()}

    def positive(self, key: str, default: Any = ...) -> float:
        """Read a number above 0, as the shortest decimal that is the same float32: 1e-05, not 9.99999974e-06."""
        value = self.number(key, default)
        return value if value is None else float(str(np.float32(value)))

    def scale(self, key: str, default: float = 1.0) -> float:
        """Read a multiplier, for which llama.cpp writes 0 where there is none."""
        return default if self.take(key, 0.0) == 0 else self.positive(key)

    def window(self) -> int | None:
        """Read the window of the layers that have one; 0 means that no layer has."""
        return self.count("attention.sliding_window", 0, minimum=0, maximum=MAX_POSITIONS) or None

    def rows(self, name: str) -> int:
        """Count the rows of a tensor that every such model must have."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.where} lacks a tensor that every {self.arch} model has", missing=[name])
        return self.tensors[name].shape[0]

    def head_dim(self, default: int) -> int:
        """Read the width of a head's keys, which the width of its values must equal."""
        head_dim = self.count("attention.key_length", default)
        self.expect_head_dim(head_dim)
        return head_dim

    def expect_head_dim(self, head_dim: int) -> None:
        for key in ("attention.key_length", "attention.value_length"):
            self.expect(key, head_dim)

    def rotary(self, head_dim: int) -> int:
        """Read how many entries of a head are rotated; all of them where no key says so."""
        self.num_rotary = self.count("rope.dimension_count", head_dim, maximum=head_dim)
        return self.num_rotary

    def rotated_part(self, head_dim: int) -> float:
        """Read the rotated entries as a part of the head. Readers multiply and cut off, so that rounding costs none."""
        rotary, part = self.rotary(head_dim), self.rotary(head_dim) / max(head_dim, 1)
        return part if int(head_dim * part) == rotary else math.nextafter(part, 2)

    def has(self, name: str) -> bool:
        """Tell whether some layer has a tensor of that name, without the layer's number."""
        return any(each.startswith("blk.") and each.endswith(f".{name}") for each in self.tensors)

    def expert_width(self) -> int:
        """Read the width of an expert; of its matrices where no key says it, or llama.cpp has written 0."""
        ends, key = "ffn_down_exps.weight", "expert_feed_forward_length"
        stored = next((info.shape[-1] for name, info in self.tensors.items() if name.endswith(ends)), None)
        return stored if stored is not None and self.take(key, 0) == 0 else self.count(key)

    def softmax_routing(self, normalised: bool) -> None:
        """Refuse a routing that llama.cpp does not compute for this architecture, whatever these keys say."""
        self.expect("expert_gating_func", 1, 0)  # softmax, or nothing
        self.expect("expert_weights_norm", normalised, False)
        self.expect("expert_weights_scale", 1.0, 0.0)


def like_llama(keys: GGUFKeys, rotates_all: bool = True, eps: str = "rms_norm_eps") -> dict[str, Any]:
    """Read the keys that Llama, Mistral, Mixtral, Qwen and many others have in common.

    rotates_all: whether all of a head is rotated. eps: Hugging Face's name of the epsilon, which tells the kind of
    norm.
    """
    sizes = keys.sizes()
    heads = sizes["num_attention_heads"]
    head_dim = keys.head_dim(sizes["hidden_size"] // heads)
    if rotates_all:
        keys.expect("rope.dimension_count", head_dim)
    part = keys.rotated_part(head_dim)
    kind = "rms_epsilon" if eps.startswith("rms") else "epsilon"
    return {
        "model_type": keys.family,
        **sizes,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        eps: keys.positive(f"attention.layer_norm_{kind}"),
        "rope_theta": keys.positive("rope.freq_base", 10000.0),
        **({} if rotates_all else {"partial_rotary_factor": part}),
    }


def like_llama_with_biases(keys: GGUFKeys) -> dict[str, Any]:
    """Read the same keys for a family whose config.json says whether Q, K and V have biases."""
    return like_llama(keys) | has_bias(keys)


def has_bias(keys: GGUFKeys, key: str = "attention_bias", name: str = "attn_q.bias") -> dict[str, Any]:
    """Make the key of config.json that says that there is a bias, where there is one."""
    return {key: True} if keys.has(name) or (name == "attn_q.bias" and keys.has("attn_qkv.bias")) else {}


def layer_types(num_layers: int, pattern: int) -> list[str]:
    """Name each layer's kind: all but the last of each `pattern` layers have a window; all where it is 0."""
    return [SLIDING if pattern == 0 or layer % pattern < pattern - 1 else FULL for layer in range(num_layers)]


def window_metadata(windows: Sequence[int | None], pattern: int | None = None) -> dict[str, Any]:
    """Make the keys of a model's windows, with a list of the layers where they depart from llama.cpp's pattern."""
    window = next((each for each in windows if each is not None), None)
    if window is None:
        return {}
    types = [SLIDING if each is not None else FULL for each in windows]
    is_usual = pattern is not None and types == layer_types(len(windows), pattern)
    each = {} if is_usual else {"attention.sliding_window_pattern": [kind == SLIDING for kind in types]}
    return {"attention.sliding_window": window, **each}


def expert_metadata(model: ModelConfig) -> dict[str, Any]:
    """Make the keys of experts' widths, where these differ from the width of layers without experts."""
    pairs = {"expert_feed_forward_length": model.expert_size}
    pairs |= {"expert_shared_feed_forward_length": model.shared_expert_size}
    return {key: size for key, size in pairs.items() if size}
