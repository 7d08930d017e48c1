"""The number of parameters of a model, by part: sums over its description."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from math import prod

from tokenmill.model.blocks import Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe


@cache
def count_parameters(config: ModelConfig) -> Mapping[str, int]:
    """Count parameters by part; a head that is tied to the embedding counts once, as the embedding."""
    decoder = describe(config)
    layers, mixers = decoder.layers, [mixer for layer in decoder.layers for mixer in layer.mixers]
    norms = [norm for layer in layers for norm in layer.norms.values()]
    inner = sum(norm.num_parameters for mixer in mixers for norm in mixer.norms.values())
    vectors = sum(prod(shape) for mixer in mixers for shape in mixer.vectors.values())
    halves = [half for layer in layers for half in (layer.mlp, layer.per_layer) if half is not None]
    beside = sum(prod(shape) for half in halves for shape in half.vectors.values())
    norms += [norm for half in halves for norm in half.norms.values()]
    per_layer, scalars = decoder.per_layer, sum(layer.scalar for layer in layers)
    if per_layer is not None:
        norms, beside = [*norms, per_layer.norm], beside + _total(per_layer.matrices)
    mtp = decoder.mtp
    if mtp is not None:
        norms, beside = [*norms, *mtp.norms.values()], beside + _total(mtp.matrices)
    norms += [] if decoder.embedding_norm is None else [decoder.embedding_norm]
    learned = 0 if config.distance_bias is None else sum(map(prod, config.distance_bias.shapes.values()))
    positions, types = config.max_position_embeddings + config.first_position, config.num_types * config.hidden_size
    return {
        "embedding": config.vocab_size * config.hidden_size,
        "inputs": 0 if per_layer is None else per_layer.vocab_size * per_layer.width,
        "positions": positions * config.hidden_size if config.positions == "learned" else 0,
        "attention": sum(_total(Counter(mixer.matrices.values())) for mixer in mixers) + inner + vectors + learned,
        "mlp": sum(_total(half.matrices) for half in halves) + beside,
        "norms": sum(norm.num_parameters for norm in [*norms, decoder.norm]) + scalars + types,
        "head": decoder.head.num_parameters if config.has_head and not config.tie_embeddings else 0,
    }


def _total(matrices: Counter[Projection]) -> int:
    return sum(count * matrix.num_parameters for matrix, count in matrices.items())
