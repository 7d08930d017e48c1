"""How many parameters a model has, by part: sums over its description."""

from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe

__all__ = ["count_parameters"]


def count_parameters(model: ModelConfig) -> dict[str, int]:
    """Parameters by part; a head that is tied to the embedding counts once, there."""
    decoder = describe(model)
    return {
        "embedding": decoder.vocab_size * decoder.hidden_size,
        "positions": decoder.num_learned_positions * decoder.hidden_size,
        "attention": sum(layer.attention.block.num_parameters for layer in decoder.layers),
        "mlp": sum(layer.mlp.block.num_parameters for layer in decoder.layers),
        "norms": sum(norm.num_parameters for norm in decoder.norms),
        "head": 0 if decoder.tied else decoder.head.num_parameters,
    }
