"""How llama.cpp stores a family: InGGUF, and the names of tensors and keys of metadata that several families share.

Tensors have the names of LLM_TENSOR_NAMES in llama.cpp's src/llama-arch.cpp. Architectures share most of them; a family
takes NAMES, or changes it by the functions here, or adds names of its own. Of the keys a family makes a config in the
words of Hugging Face's config.json, so that one reader of configs makes the model of either. weights/gguf/ reads the
keys that all architectures share: sizes of the vocabulary, scaling of rope, end tokens.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tokenmill.errors import CheckpointError
from tokenmill.model.config import MAX_LAYERS, ModelConfig
from tokenmill.value_reader import MAX_COUNT, MAX_POSITIONS, ValueReader


def _mlp(suffix: str, ours: str, expert: str = "") -> dict[str, str]:
    places = {"gate": "up{p}:gate", "up": "up{p}:up", "down": "down{p}"}
    begin, end = "blk.{i}.ffn_", f"{suffix}{{p}}{expert}"
    return {begin + part + end: f"layers.{{i}}.mlp.{ours}{place}" for part, place in places.items()}


QKV = {f"blk.{{i}}.attn_{letter}{{p}}": f"layers.{{i}}.attention.qkv{{p}}:{letter}" for letter in "qkv"}
FUSED_QKV = {"blk.{i}.attn_qkv{p}": "layers.{i}.attention.qkv{p}"}
GATED = _mlp("", "")
PLAIN_MLP = {f"blk.{{i}}.ffn_{name}{{p}}": f"layers.{{i}}.mlp.{name}{{p}}" for name in ("up", "down")}
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
    several, as llama.cpp's converter can be asked to write it. Delta nets have Q, K and V in one tensor anyway.
    """
    found, has_delta_nets = dict(names), "blk.{i}.attn_qkv.weight" in names
    if "blk.0.attn_qkv.weight" in stored and QKV.keys() <= names.keys() and not has_delta_nets:
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
    return others | {name: f"{target} | less one" for name, target in weights.values()} | biases


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
    told, as a format and its values, where llama.cpp computes otherwise. rope_lists: the values of tensors that are no
    weights, by name. num_rotary: the rotated entries of a head, once `rotary` was called; None without rope.
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
        """Read which layers have a window: all except each last of `pattern`, unless a key has another pattern, or a
        list of the layers (llama.cpp's load_swa_pattern).
        """
        given = self.by_layer(key := "attention.sliding_window_pattern", num_layers)
        if given is None:
            return layer_types(num_layers, self.count(key, pattern, 0, MAX_LAYERS))
        return [SLIDING if entry else FULL for entry in given]

    def by_layer(self, key: str, num_layers: int) -> list[bool | int] | None:
        """Read a list of true or false, or of whole numbers, for each layer; None where the key has no list."""
        given = super().take(key, None)
        if not isinstance(given, list):
            return None
        if len(given) != num_layers or not all(isinstance(entry, bool | int) for entry in given):
            raise self.refuse(key, given, f"true or false, or a whole number, for each of {num_layers} layers")
        return given

    def layers_with(self, key: str, num_layers: int) -> list[bool]:
        """Read in which layers a number is not 0. From then on the number of these layers is read."""
        given = self.by_layer(key, num_layers)
        if given is None:
            return [True] * num_layers
        if not any(given):
            raise self.refuse(key, given, "a number above 0 for some layer")
        self.values = {**self.values, self.name(key): [entry for entry in given if entry]}
        return [bool(entry) for entry in given]

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

    def rotated_part(self, head_dim: int, rotary: int | None = None) -> float:
        """Read the rotated entries as a part of the head. Readers multiply and cut off, so that rounding costs none."""
        part = (rotary := self.rotary(head_dim) if rotary is None else rotary) / max(head_dim, 1)
        return part if int(head_dim * part) == rotary else math.nextafter(part, 2)

    def has(self, name: str) -> bool:
        """Tell whether some layer has a tensor of that name, without the layer's number."""
        return any(each.startswith("blk.") and each.endswith(f".{name}") for each in self.tensors)

    def experts(self, number: str = "num_local_experts", chosen: str = "num_experts_per_tok") -> dict[str, int]:
        """Read how many experts a layer has, and how many a token takes, under these names of Hugging Face's."""
        return {number: self.count("expert_count"), chosen: self.count("expert_used_count")}

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
    """Name each layer's kind: of each `pattern` layers all except the last have a window; all where it is 0."""
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
    sizes = {"": model.expert_size, "shared_": model.shared_expert_size}
    return {f"expert_{name}feed_forward_length": size for name, size in sizes.items() if size}


def symmetric_window(windows: Sequence[int | None]) -> dict[str, Any]:
    """Make the keys of windows that reach as far before a token as behind it: llama.cpp counts both sides together."""
    return window_metadata([window and 2 * (window - 1) for window in windows])


CLASSIFIER = ("cls.weight", "cls.bias", "cls.norm.weight", "cls.output.weight", "cls.output.bias")
"""The tensors of a head that scores texts; see weights/classifier.py."""
DENSE = ("dense_2", "dense_3")
"""The matrices by which a pooled vector is multiplied (EmbeddingGemma)."""


@dataclass(frozen=True)
class InGGUF:
    """How llama.cpp stores a family.

    architecture: its name there. names: llama.cpp's names of tensors → target, see Family. read: makes a config.json of
    the keys of this architecture. metadata: makes the keys of a model that not all architectures have. ignored: names
    of tensors that are no weights; their values are read with the config. needs: what llama.cpp's loader requires, keys
    of NEEDS. windows: whether llama.cpp computes a model's windows. yarn: the numbers of YaRN that it reads. further:
    whether there may be layers that predict further tokens. with_experts: its name for models with experts. older:
    names of older files, in the place of the names that fill the same parameter. ones: keys of multipliers, which its
    files have in the weights → the values that change nothing. lists: makes tensors that hold numbers of the config, by
    names that `ignored` has, too. zeros: makes the shapes of tensors that llama.cpp's loader wants and nothing reads,
    which are written as zeros. encodes: whether tokens see later ones. encoder: its name for models whose tokens do.
    """

    architecture: str
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    read: Callable[[GGUFKeys], dict[str, Any]] = like_llama_with_biases
    metadata: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}
    ignored: tuple[str, ...] = ("rope_freqs.weight", *CLASSIFIER)
    needs: tuple[str, ...] = ()
    windows: Callable[[ModelConfig], bool] = lambda _: False
    yarn: tuple[str, ...] = ()
    further: bool = False
    with_experts: str = ""
    older: Mapping[str, str] = field(default_factory=dict)
    ones: Mapping[str, Any] = field(default_factory=dict)
    lists: Callable[[ModelConfig], dict[str, list[float]]] = lambda _: {}
    zeros: Callable[[ModelConfig], dict[str, tuple[int, ...]]] = lambda _: {}
    encodes: bool = False
    encoder: str = ""

    @property
    def architectures(self) -> tuple[str, ...]:
        """List the names that llama.cpp has for models of the family."""
        return tuple(filter(None, (self.architecture, self.with_experts, self.encoder)))
