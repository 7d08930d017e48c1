"""The share that each rank has of a model in program eager, in plain integers: rows of matrices, heads, and bytes.

Parts that cannot be divided exactly, or are not worth an exchange, are whole on every rank: norms, routers, and
matrices whose shares would be products of another kind.
"""

from collections import Counter
from collections.abc import Iterator

from tokenmill.model.blocks import Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.counts import count_parameters
from tokenmill.model.description import DecoderDescription, describe
from tokenmill.model.per_layer import numbers_in_file
from tokenmill.parallel.division import divide, divide_rows, whole_tiles
from tokenmill.program.mixer_shares import share_of
from tokenmill.quant.schemes import Scheme
from tokenmill.settings.engine_config import DTYPES

SMALL = 16**3
"""Torch multiplies a bfloat16 matrix of at most so many numbers in another way (use_mkldnn_bf16_matmul), so that
smaller shares would have other bits. Packed matrices are always multiplied in the same way."""
WHOLE = ("router", "shared_gate")  # roles of matrices with few rows


def matrix_rows(matrix: Projection, scheme: Scheme, ranks: int) -> list[range] | None:
    """Divide the rows of a matrix that does not follow the heads; None if every rank has all of them."""
    rows = None if matrix.role in WHOLE else divide_rows(matrix.outputs, ranks)
    if rows is None or is_small(min(map(len, rows)), matrix, scheme):
        return None
    return rows


def is_small(num_rows: int, matrix: Projection, scheme: Scheme) -> bool:
    """Say whether so many rows of a matrix are a product of another kind than all of its rows."""
    return scheme.matrix != "packed" and num_rows * matrix.inputs <= SMALL


def table_rows(vocab_size: int, ranks: int) -> list[range]:
    """Divide the rows of the embedding."""
    return divide_rows(vocab_size, ranks) or divide(vocab_size, ranks)


def computed_rows(matrix: Projection, wanted: list[range], scheme: Scheme) -> list[range]:
    """Find the rows of a matrix that a rank computes so that the wanted ones have the same bits."""
    rows = whole_tiles(wanted, matrix.outputs)
    return [range(matrix.outputs)] if is_small(sum(map(len, rows)), matrix, scheme) else rows


def rank_weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme, ranks: int) -> list[int]:
    """Foresee num_weight_bytes of the program of each rank."""
    return [_bytes_of(describe(model), dtype, scheme, rank, ranks) for rank in range(ranks)]


def _bytes_of(decoder: DecoderDescription, dtype: str, scheme: Scheme, rank: int, ranks: int) -> int:
    model, itemsize = decoder.config, DTYPES[dtype]
    bias_size = DTYPES["float32"] if scheme.rounds_to else itemsize
    found = 0
    for matrix, count, num_rows in _own_rows(decoder, scheme, rank, ranks):
        is_rounded = matrix.role != "router"  # no scheme rounds a router
        stored = scheme.matrix_bytes(num_rows, matrix.inputs, dtype, model.code_bits) if is_rounded else 0
        found += count * (stored or num_rows * matrix.inputs * itemsize)
        found += count * num_rows * matrix.bias * (bias_size if is_rounded else itemsize)
    table = len(table_rows(model.vocab_size, ranks)[rank])
    found += table * model.hidden_size * itemsize
    if model.per_layer is not None and not numbers_in_file(model, dtype):
        found += len(table_rows(model.per_layer.vocab_size, ranks)[rank]) * model.per_layer.width * itemsize
    if model.tie_embeddings and scheme.is_plain:
        found -= table * model.hidden_size * itemsize  # the head is the embedding itself
    return found + itemsize * (_replicated(decoder) + _count_vectors(decoder, rank, ranks))


def _own_rows(
    decoder: DecoderDescription, scheme: Scheme, rank: int, ranks: int
) -> Iterator[tuple[Projection, int, int]]:
    """Yield every matrix, the number of such matrices, and how many of its rows this rank has."""
    for layer in decoder.layers:
        others = Counter[Projection]()
        for half in (layer.mlp, layer.per_layer):
            others += Counter() if half is None else half.matrices
        for mixer in layer.mixers:
            own = share_of(mixer, rank, ranks).rows
            for role, matrix in mixer.matrices.items():
                if role in own:
                    yield matrix, 1, sum(map(len, computed_rows(matrix, own[role], scheme)))
                else:
                    others[matrix] += 1
        yield from _divided(others, scheme, rank, ranks)
    if decoder.per_layer is not None:
        yield from _divided(decoder.per_layer.matrices, scheme, rank, ranks)
    if decoder.mtp is not None:
        yield from _divided(decoder.mtp.matrices, scheme, rank, ranks)
    if decoder.config.tie_embeddings and scheme.is_plain:
        yield decoder.head, 1, len(table_rows(decoder.head.outputs, ranks)[rank])
    else:
        yield from _divided(Counter([decoder.head]), scheme, rank, ranks)


def _divided(
    matrices: Counter[Projection], scheme: Scheme, rank: int, ranks: int
) -> Iterator[tuple[Projection, int, int]]:
    for matrix, count in matrices.items():
        shares = matrix_rows(matrix, scheme, ranks)
        yield matrix, count, matrix.outputs if shares is None else len(shares[rank])


def _replicated(decoder: DecoderDescription) -> int:
    """Count the parameters that every rank has."""
    counts = count_parameters(decoder.config)
    matrices = sum(matrix.num_parameters * count for matrix, count in decoder.matrices.items())
    head = decoder.head.num_parameters if decoder.config.tie_embeddings else 0  # counted once, as the embedding
    tables = counts["embedding"] + counts["inputs"]
    return sum(counts.values()) + head - matrices - tables - _count_vectors(decoder, 0, 1)


def _count_vectors(decoder: DecoderDescription, rank: int, ranks: int) -> int:
    """Count the numbers beside matrices that a rank has of divided mixers."""
    mixers = [mixer for layer in decoder.layers for mixer in layer.mixers]
    return sum(share_of(mixer, rank, ranks).num_vectors for mixer in mixers)
