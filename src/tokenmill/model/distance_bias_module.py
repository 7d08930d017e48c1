"""The module that adds a number to scores by the distance of a key from its query."""

import math
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from tokenmill.cache.step import Span
from tokenmill.model.distance_bias import DistanceBias
from tokenmill.quant.schemes import Scheme


class AddedByDistance(nn.Module):
    """The learned numbers, if any, and the table of all distances that occurred."""

    def __init__(self, block: DistanceBias, scheme: Scheme, fused: Collection[str]) -> None:
        super().__init__()
        self.block = block
        shapes = list(block.shapes.values())
        self.weight = nn.Parameter(torch.empty(shapes[0])) if shapes else None
        self._table_ND = torch.empty((block.num_heads, 0))

    def added_to(self, mask_TL: Tensor, span: Span, num_kv_heads: int) -> Iterator[Tensor]:
        """Add to a mask of a span, for the query heads of each kv head: [G, T, L]."""
        if self._table_ND.shape[1] < 2 * span.length - 1:
            self._table_ND = bias_table(self.block, self.weight, span.length).to(mask_TL.device)
        table_ND, (num_queries, num_keys) = self._table_ND, mask_TL.shape
        begin = table_ND.shape[1] // 2 - num_keys + 1
        bias_NTL = table_ND.unfold(1, num_keys, 1)[:, begin : begin + num_queries]  # the last query first
        parts = bias_NTL.chunk(num_kv_heads)
        return (mask_TL + bias_GTL.flip(1) for bias_GTL in parts)


def bias_table(block: DistanceBias, weight_BN: Tensor | None, num_positions: int) -> Tensor:
    """Compute what is added to the score of each head at the distances from 1 - num_positions to num_positions - 1, a
    key before its query first: [N, 2 * num_positions - 1] in float32. weight_BN: the learned numbers of buckets.
    """
    distances_D = torch.arange(1 - num_positions, num_positions)
    if weight_BN is not None:
        return weight_BN.float().cpu()[_buckets(distances_D, block)].t().contiguous()
    return -torch.tensor(slopes(block.num_heads))[:, None] * distances_D.abs()


def _buckets(distances_D: Tensor, block: DistanceBias) -> Tensor:
    """Find the bucket of each distance, by transformers' operations in their order: a logarithm that is rounded
    otherwise gives a neighbouring bucket.
    """
    half = block.num_buckets // 2
    exact, far_D = half // 2, distances_D.abs()
    ratio = math.log(block.max_distance / exact)
    large_D = exact + (torch.log(far_D.float() / exact) / ratio * (half - exact)).long()
    inner_D = torch.where(far_D < exact, far_D, large_D.clamp(max=half - 1))
    return inner_D + half * (distances_D > 0)


def slopes(num_heads: int) -> list[float]:
    """Compute ALiBi's slopes (https://arxiv.org/abs/2108.12409): powers of 2 ** (-8 / heads). Where the number of heads
    is no power of two, the next lower one has such slopes, and the other heads every second slope of twice as many.
    """
    power = 1 << (num_heads.bit_length() - 1)
    found = [2.0 ** (-8 * (head + 1) / power) for head in range(power)]
    return found + [2.0 ** (-4 * (2 * head + 1) / power) for head in range(num_heads - power)]
