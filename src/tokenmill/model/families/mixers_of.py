"""The facts of a model's layers that keep a state, for those who read and write its files."""

from typing import Any, TypeVar

from tokenmill.model.config import ModelConfig

Block = TypeVar("Block")


def state_mixers(model: ModelConfig) -> list[Any]:
    """List the mixers of all layers, without attention."""
    of_layers = (each if isinstance(each, tuple) else (each,) for each in model.mixers)
    return [mixer for mixers in of_layers for mixer in mixers if mixer is not None]


def has_state_bias(model: ModelConfig) -> bool:
    """Tell whether a matrix of such a mixer has a bias."""
    return any(matrix.bias for mixer in state_mixers(model) for matrix in mixer.matrices.values())


def has_conv_biases(model: ModelConfig) -> bool:
    """Tell whether all convolutions that may have biases have them."""
    return all(getattr(mixer, "conv_bias", True) for mixer in state_mixers(model))


def mixer_of(model: ModelConfig, kind: type[Block]) -> Block | None:
    """Find the facts of the first mixer of that kind; all layers of a model that have such a mixer have the same."""
    return next((mixer for mixer in state_mixers(model) if isinstance(mixer, kind)), None)
