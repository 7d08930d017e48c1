"""The names and shapes of a decoder's parameters, as its modules have them: `layers.3.attention.qkv.weight`.

They are made from the description, so that tensors of a file can be compared with them where no module is built.
"""

from collections.abc import Iterator
from typing import Any

from tokenmill.model.blocks import Norm, Projection
from tokenmill.model.description import DecoderDescription, LayerDescription

Shapes = dict[str, tuple[int, ...]]


def join(layer: int | None, role: str) -> str:
    """Join the path of a module of a layer, "layers.3.attention.qkv", or of a module outside of layers, "head"."""
    return role if layer is None else f"layers.{layer}.{role}"


def matrices_of(decoder: DecoderDescription) -> dict[str, Projection]:
    """List every matrix by its path. A tied head is among them, but has no parameters of its own."""
    found = {
        join(number, role): matrix
        for number, layer in enumerate(decoder.layers)
        for role, matrix in _matrices_of(layer).items()
    }
    if decoder.per_layer is not None:
        found |= {f"per_layer.{role}": matrix for role, matrix in decoder.per_layer.roles().items()}
    if decoder.mtp is not None:
        found |= {f"mtp.{role}": matrix for role, matrix in decoder.mtp.roles().items()}
    return {**found, "head": decoder.head} if decoder.config.has_head else found


def parameter_shapes(decoder: DecoderDescription) -> Shapes:
    """List the shape of every parameter by its name, in the order of the modules."""
    config, hidden = decoder.config, decoder.head.inputs
    found: Shapes = {"embedding.weight": (config.vocab_size, hidden)}
    if config.positions == "learned":
        found["position_embedding.weight"] = (config.max_position_embeddings + config.first_position, hidden)
    if config.num_types:
        found["type_embedding.weight"] = (config.num_types, hidden)
    found |= {} if config.distance_bias is None else config.distance_bias.shapes
    if config.embedding_norm == "own":
        found |= _of_norm("embedding_norm", decoder.norm)
    if decoder.per_layer is not None:
        found["per_layer.embedding.weight"] = (decoder.per_layer.vocab_size, decoder.per_layer.width)
        found |= _of_norm("per_layer.norm", decoder.per_layer.norm)
    for role, norm in (decoder.mtp.norms if decoder.mtp is not None else {}).items():
        found |= _of_norm(f"mtp.{role}", norm)
    for number, layer in enumerate(decoder.layers):
        for role, norm in _norms_of(layer):
            found |= _of_norm(join(number, role), norm)
        found |= {join(number, role): shape for role, shape in _vectors_of(layer).items()}
    for path, matrix in matrices_of(decoder).items():
        if not (path == "head" and config.tie_embeddings):
            found[f"{path}.weight"] = (matrix.outputs, matrix.inputs)
            found |= {f"{path}.bias": (matrix.outputs,)} if matrix.bias else {}
    return found | _of_norm("norm", decoder.norm)


def _halves(layer: LayerDescription) -> dict[str, Any]:
    """Name what stands behind the mixer."""
    found = {"mlp": layer.mlp, "per_layer": layer.per_layer}
    return {name: half for name, half in found.items() if half is not None}


def _matrices_of(layer: LayerDescription) -> dict[str, Projection]:
    found = {f"{mixer.name}.{role}": each for mixer in layer.mixers for role, each in mixer.matrices.items()}
    for name, half in _halves(layer).items():
        found |= {f"{name}.{role}": matrix for role, matrix in half.roles().items()}
    return found


def _vectors_of(layer: LayerDescription) -> Shapes:
    """List the parameters of a layer that are neither a norm nor a matrix nor its bias."""
    found = {f"{mixer.name}.{name}": shape for mixer in layer.mixers for name, shape in mixer.vectors.items()}
    for name, half in _halves(layer).items():
        found |= {f"{name}.{role}": shape for role, shape in half.vectors.items()}
    return found | ({"scalar": (1,)} if layer.scalar else {})


def _norms_of(layer: LayerDescription) -> Iterator[tuple[str, Norm]]:
    yield from layer.norms.items()
    for name, part in {**{mixer.name: mixer for mixer in layer.mixers}, **_halves(layer)}.items():
        yield from ((f"{name}.{role}", norm) for role, norm in part.norms.items())


def _of_norm(path: str, norm: Norm) -> Shapes:
    shape = (norm.size,) if norm.heads == 1 else (norm.heads, norm.size)
    there = {f"{path}.weight": norm.weight, f"{path}.bias": norm.bias}
    return {name: shape for name, is_there in there.items() if is_there}
