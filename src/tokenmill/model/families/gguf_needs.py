"""The requirements of llama.cpp's loader, which a model that is written as a GGUF file must meet."""

from collections.abc import Callable

from tokenmill.model.config import ModelConfig
from tokenmill.model.families.mixers_of import has_conv_biases, has_state_bias


def _has_no_biases(model: ModelConfig) -> bool:
    return not (model.qkv_bias or model.o_bias or model.mlp_bias or (model.norm == "layer" and model.norm_bias))


NEEDS: dict[str, tuple[Callable[[ModelConfig], bool], str]] = {
    "biases": (lambda model: model.qkv_bias, "with biases"),
    "no o_bias": (lambda model: not model.o_bias, "without a bias behind attention"),
    "no mlp_bias": (lambda model: not model.mlp_bias, "without biases in the MLP"),
    "no qk_norm": (lambda model: model.qk_norm is None, "without norms of Q and K"),
    "own head": (lambda model: not model.tie_embeddings, "with a head of its own"),
    "tied head": (lambda model: model.tie_embeddings, "whose head is its embedding"),
    "square": (lambda model: model.num_heads * model.head_dim == model.hidden_size, "whose heads are as wide as it"),
    "no state bias": (lambda model: not has_state_bias(model), "without biases in its mixers"),
    "no expert bias": (lambda model: not (model.num_experts and model.mlp_bias), "whose experts have no biases"),
    "conv bias": (has_conv_biases, "with convolution biases"),
    "no encoder biases": (_has_no_biases, "without biases"),
    "no groups": (lambda model: model.num_heads == model.num_kv_heads, "with a head of K and V for each of Q"),
}
"""The requirements of llama.cpp's loader, by name: a test of the model, and the requirement in words."""
