"""How llama.cpp stores a family: InGGUF, and what reads the metadata of its architecture, GGUFKeys.

A family gives its config in the words of Hugging Face's config.json, so that one reader of configs makes the model of
either. weights/gguf/ reads what all architectures share: sizes of the vocabulary, scaling of rope, end tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.value_reader import MAX_COUNT, MAX_POSITIONS, ValueReader

Warn = Callable[..., None]

SIZES = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
}
"""GGUF's key → Hugging Face's, of sizes that only have another name."""


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
"""Of an MLP without a gate, or one whose gate is stored before the rest in one matrix."""
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
    """The names of a file that has Q, K and V in one tensor."""
    return {**{name: target for name, target in names.items() if name not in QKV}, **FUSED_QKV}


def plain_mlp(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """The names of a file whose `ffn_up` is all of a layer's first matrix."""
    return {**{name: target for name, target in names.items() if name not in GATED}, **PLAIN_MLP}


def paired(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """The names of a file whose rows of Q and K rotate in pairs of neighbours."""
    rotated = [f"blk.{{i}}.attn_{letter}{{p}}" for letter in "qk"]
    return {**names, **{name: f"{names[name]} | pairs_to_halves" for name in rotated}}


def norms_less_one(names: Mapping[str, str] = NAMES) -> dict[str, str]:
    """The names of a file that has 1 + weight of norms that multiply by that."""
    norms = [name for name in names if name.endswith("norm{p}")]
    weights = {name: (name.replace("{p}", ".weight"), names[name].replace("{p}", ".weight")) for name in norms}
    biases = {name.replace("{p}", ".bias"): names[name].replace("{p}", ".bias") for name in norms}
    others = {name: target for name, target in names.items() if name not in norms}
    return {**others, **{name: f"{target} | less one" for name, target in weights.values()}, **biases}


class _Described(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...


class GGUFKeys(ValueReader):
    """Reads the architecture's keys, which are named without it.

    family: the plain one of those that share the architecture. tensors: what the file holds, by GGUF's names. warn: is
    told, as a format and its values, where llama.cpp computes otherwise. num_rotary: how many entries of a head are
    rotated, once `rotary` was asked; None for a model without rope.
    """

    def __init__(
        self,
        path: Path,
        metadata: Mapping[str, Any],
        tensors: Mapping[str, _Described],
        warn: Warn,
        family: str,
        arch: str,
    ) -> None:
        super().__init__(metadata, str(path), CheckpointError, f"{arch}.")
        self.tensors, self.warn, self.family, self.arch = tensors, warn, family, arch
        self.num_rotary: int | None = None

    def take(self, key: str, default: Any = ...) -> Any:
        """See ValueReader. A list, which has one entry per layer, must be uniform."""
        value = super().take(key, default)
        if not isinstance(value, list):
            return value
        if not value or any(entry != value[0] for entry in value):
            raise self.refuse(key, value, "it differs by layer")
        return value[0]

    def sizes(self, names: Mapping[str, str] = SIZES) -> dict[str, int]:
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

    def head_dim(self, default: int) -> int:
        """The width of a head, which that of its values must equal."""
        head_dim = self.count("attention.key_length", default)
        self.expect_head_dim(head_dim)
        return head_dim

    def expect_head_dim(self, head_dim: int) -> None:
        for key in ("attention.key_length", "attention.value_length"):
            self.expect(key, head_dim)

    def rotary(self, head_dim: int) -> int:
        """How many entries of a head are rotated; all of them where no key says so."""
        self.num_rotary = self.count("rope.dimension_count", head_dim, maximum=head_dim)
        return self.num_rotary


def like_llama(keys: GGUFKeys) -> dict[str, Any]:
    """What Llama, Mistral, Mixtral and Qwen have in common, and many others."""
    sizes = keys.sizes()
    heads = sizes["num_attention_heads"]
    head_dim = keys.head_dim(sizes["hidden_size"] // heads)
    keys.expect("rope.dimension_count", head_dim)
    keys.rotary(head_dim)
    return {
        "model_type": keys.family,
        **sizes,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": keys.positive("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.positive("rope.freq_base", 10000.0),
    }


def like_llama_with_biases(keys: GGUFKeys) -> dict[str, Any]:
    """The same of a family whose config.json says whether Q, K and V have biases."""
    return like_llama(keys) | ({"attention_bias": True} if "blk.0.attn_q.bias" in keys.tensors else {})


@dataclass(frozen=True)
class InGGUF:
    """How llama.cpp stores a family.

    architecture: its name there. names: llama.cpp's names of tensors → target, see Family. read: makes a config.json of
    the keys of this architecture. metadata: those keys beside the ones that all architectures have, of a model.
    ignored: names of tensors that are no weights; what they say is read with the config. has_biases: whether llama.cpp
    reads no such model without biases of Q, K and V. windows: whether llama.cpp computes windows for it.
    """

    architecture: str
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    read: Callable[[GGUFKeys], dict[str, Any]] = like_llama_with_biases
    metadata: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}
    ignored: tuple[str, ...] = ("rope_freqs.weight",)
    has_biases: bool = False
    windows: bool = False
