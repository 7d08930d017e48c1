"""How llama.cpp stores a family: InGGUF, whose parts gguf_names.py and gguf_keys.py describe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenmill.model.config import ModelConfig
from tokenmill.model.families.gguf_keys import GGUFKeys, like_llama_with_biases
from tokenmill.model.families.gguf_names import NAMES

Need = tuple[Callable[[ModelConfig], bool], str]
NEEDS: dict[str, Need] = {
    "biases": (lambda model: model.qkv_bias, "with biases"),
    "no o_bias": (lambda model: not model.o_bias, "without a bias behind attention"),
    "no mlp_bias": (lambda model: not model.mlp_bias, "without biases in the MLP"),
    "no qk_norm": (lambda model: model.qk_norm is None, "without norms of Q and K"),
    "own head": (lambda model: not model.tie_embeddings, "with a head of its own"),
    "tied head": (lambda model: model.tie_embeddings, "whose head is its embedding"),
    "square": (lambda model: model.num_heads * model.head_dim == model.hidden_size, "whose heads are as wide as it"),
    "no groups": (lambda model: model.num_heads == model.num_kv_heads, "with a head of K and V for each of Q"),
}
"""The requirements of llama.cpp's loader, by name: a test of the model, and the requirement in words."""


@dataclass(frozen=True)
class InGGUF:
    """How llama.cpp stores a family.

    architecture: its name there. names: llama.cpp's names of tensors → target, see Family. read: makes a config.json of
    the keys of this architecture. metadata: those keys beside the ones that all architectures have, of a model.
    ignored: names of tensors that are no weights; what they say is read with the config. needs: keys of NEEDS, of what
    llama.cpp cannot do without. windows: whether llama.cpp computes a model's windows. yarn: the numbers of YaRN that
    it reads. further: whether there may be layers that predict further tokens.
    """

    architecture: str
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    read: Callable[[GGUFKeys], dict[str, Any]] = like_llama_with_biases
    metadata: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}
    ignored: tuple[str, ...] = ("rope_freqs.weight",)
    needs: tuple[str, ...] = ()
    windows: Callable[[ModelConfig], bool] = lambda _: False
    yarn: tuple[str, ...] = ()
    further: bool = False
