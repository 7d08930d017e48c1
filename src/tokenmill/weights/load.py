"""Decoders of PyTorch modules, built and filled from a WeightSource.

The decoder is built without memory. Then each module in turn gets its parameters, the largest matrix first. At no time
is there a second copy of the weights, only of one matrix.
"""

from collections.abc import Collection, Iterator

import torch
from torch import nn

from tokenmill.model.config import ModelConfig
from tokenmill.model.decoder import Decoder
from tokenmill.model.mtp import MtpInput
from tokenmill.model.per_layer import numbers_in_file
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import Scheme
from tokenmill.registry import MLPS, lookup
from tokenmill.weights.mapped_table import MappedRows
from tokenmill.weights.source import WeightSource, return_memory

RETURNED = 16  # matrices after which freed memory is given back


def load_decoder(
    source: WeightSource, num_positions: int, fused: Collection[str], lent: Decoder | None = None
) -> Decoder:
    """Load a decoder with its weights. lent: has the same embedding and head, which are not read again."""
    decoder = empty_decoder(source.model, source.scheme, num_positions, fused)
    if lent is not None:
        decoder.embedding, decoder.head = lent.embedding, lent.head
    map_table(decoder, source)
    shared: set[nn.Module] = set() if lent is None else {lent.embedding, *([] if lent.head is None else [lent.head])}
    fill_small(decoder, source, shared)
    is_tied = source.model.tie_embeddings  # then the head has no tensors of its own, and comes last
    found = [each for each in matrices_in(decoder) if each[2] not in shared]
    found.sort(key=lambda each: (is_tied and each[2] is decoder.head, -_num_weights(each[2])))
    for number, (layer, role, matrix) in enumerate(found):  # the largest first, while most memory is free
        matrix.fill(source.matrix(layer, role))
        if number % RETURNED == 0:
            return_memory()
    decoder.finish()
    return_memory()
    return decoder


def empty_decoder(config: ModelConfig, scheme: Scheme, num_positions: int, fused: Collection[str]) -> Decoder:
    """Build a decoder of the right shape whose parameters have no memory yet."""
    is_plain = config.mtp_layer is None and not config.given_width
    make: type[Decoder] = Decoder if is_plain else lookup(MLPS, MtpInput.name, "mlp", computes=True)
    with torch.device("meta"):
        return make(config, scheme, num_positions, fused).eval().requires_grad_(False)


def map_table(decoder: Decoder, source: WeightSource) -> bool:
    """Have a decoder look the inputs of its layers up in the file, if it can; tell whether it does."""
    if is_mapped := numbers_in_file(source.model, str(source.dtype).removeprefix("torch.")) > 0:
        decoder.per_layer.embedding = MappedRows(source.table("per_layer.embedding.weight"), source.dtype)
    return is_mapped


def fill_small(decoder: Decoder, source: WeightSource, but: Collection[nn.Module] = ()) -> None:
    """Fill tables, norms and biases: all parameters except the weights of matrices and of the modules `but`."""
    for path, module in decoder.named_modules():
        for name, _ in list(module.named_parameters(recurse=False)):
            if module not in but and not (isinstance(module, Matrix) and name == "weight"):
                setattr(module, name, nn.Parameter(source.tensor(f"{path}.{name}"), requires_grad=False))


def matrices_in(decoder: Decoder) -> Iterator[tuple[int | None, str, Matrix]]:
    """Yield each matrix with its layer, and its role there."""
    for number, layer in enumerate(decoder.layers):
        for role, module in layer.named_modules():
            if isinstance(module, Matrix):
                yield number, role, module
    for role, module in decoder.named_modules():
        if isinstance(module, Matrix) and not role.startswith("layers."):
            yield None, role, module


def _num_weights(matrix: Matrix) -> int:
    return matrix.get_parameter("weight").numel()
