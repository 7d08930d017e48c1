"""The share that each rank has of a model in program eager, in plain integers: rows of matrices, heads, and bytes.

Parts that cannot be divided exactly, or are not worth an exchange, are whole on every rank: norms, routers, and
matrices whose shares would be products of another kind.
"""

from collections.abc import Iterator

from tokenmill.model.blocks import Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import DecoderDescription, count_parameters, describe
from tokenmill.model.mixers.attention import AttentionBlock
from tokenmill.parallel.division import divide, divide_heads, divide_rows, qkv_rows, whole_tiles
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


def rows_of_heads(block: AttentionBlock, kv_heads: range, scheme: Scheme) -> tuple[list[range], list[range]]:
    """Find the rows of Q, K and V of these heads, and the rows that a rank computes so that they have the same bits."""
    wanted = qkv_rows(kv_heads, block.num_heads, block.num_kv_heads, block.head_dim)
    rows = whole_tiles(wanted, block.qkv.outputs)
    if is_small(sum(map(len, rows)), block.qkv, scheme):
        rows = [range(block.qkv.outputs)]
    return wanted, rows


def rank_weight_bytes(model: ModelConfig, dtype: str, scheme: Scheme, ranks: int) -> list[int]:
    """Foresee num_weight_bytes of the program of each rank."""
    decoder = describe(model)
    heads = divide_heads([block.num_kv_heads for block in decoder.attentions], ranks)
    return [_bytes_of(decoder, dtype, scheme, rank, heads) for rank in range(ranks)]


def _bytes_of(decoder: DecoderDescription, dtype: str, scheme: Scheme, rank: int, heads: list[list[range]]) -> int:
    model, itemsize, ranks = decoder.config, DTYPES[dtype], len(heads)
    bias_size = DTYPES["float32"] if scheme.rounds_to else itemsize
    found = 0
    for matrix, count, num_rows in _own_rows(decoder, scheme, rank, heads):
        is_rounded = matrix.role != "router"  # no scheme rounds a router
        stored = scheme.matrix_bytes(num_rows, matrix.inputs, dtype, model.code_bits) if is_rounded else 0
        found += count * (stored or num_rows * matrix.inputs * itemsize)
        found += count * num_rows * matrix.bias * (bias_size if is_rounded else itemsize)
    table = len(table_rows(model.vocab_size, ranks)[rank])
    found += table * model.hidden_size * itemsize
    if model.tie_embeddings and scheme.is_plain:
        found -= table * model.hidden_size * itemsize  # the head is the embedding itself
    return found + itemsize * (_replicated(decoder) + _vectors_of_heads(decoder, heads[rank]))


def _own_rows(
    decoder: DecoderDescription, scheme: Scheme, rank: int, heads: list[list[range]]
) -> Iterator[tuple[Projection, int, int]]:
    """Yield every matrix, the number of such matrices, and how many of its rows this rank has."""
    ranks = len(heads)
    for layer, block, own in zip(decoder.layers, decoder.attentions, heads[rank], strict=True):
        _, rows = rows_of_heads(block, own, scheme)
        yield block.qkv, 1, sum(map(len, rows))
        assert layer.mlp is not None, "layers with one half are refused"
        for matrix, count in (*layer.mlp.matrices.items(), (block.out, 1)):
            shares = matrix_rows(matrix, scheme, ranks)
            yield matrix, count, matrix.outputs if shares is None else len(shares[rank])
    if decoder.config.tie_embeddings and scheme.is_plain:
        yield decoder.head, 1, len(table_rows(decoder.head.outputs, ranks)[rank])
    else:
        shares = matrix_rows(decoder.head, scheme, ranks)
        yield decoder.head, 1, decoder.head.outputs if shares is None else len(shares[rank])


def _replicated(decoder: DecoderDescription) -> int:
    """Count the parameters that every rank has."""
    counts = count_parameters(decoder.config)
    matrices = sum(matrix.num_parameters * count for matrix, count in decoder.matrices.items())
    divided = _vectors_of_heads(decoder, [range(block.num_kv_heads) for block in decoder.attentions])
    head = decoder.head.num_parameters if decoder.config.tie_embeddings else 0  # counted once, as the embedding
    return sum(counts.values()) + head - matrices - counts["embedding"] - divided


def _vectors_of_heads(decoder: DecoderDescription, kv_heads: list[range]) -> int:
    """Count the sinks, and the weights of the norms, of these heads."""
    found = 0
    for block, own in zip(decoder.attentions, kv_heads, strict=True):
        counts = len(own) * block.num_heads // block.num_kv_heads, len(own)
        found += counts[0] * block.shape.sinks
        norms = zip(block.qk_norms, counts, strict=False)
        found += sum(norm.size * count * (norm.weight + norm.bias) for norm, count in norms if norm.heads > 1)
    return found
