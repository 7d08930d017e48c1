"""The division of a model among ranks, in plain integers: the rows of matrices that a rank has, and its heads. Only
counts are divided, so that every rank finds the same.

Rows are divided, sums never: a rank computes whole dot products, so that the joined results have the bits of one
process. Q, K and V follow the kv heads, which need not divide evenly; every other matrix is divided by tiles of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tokenmill.cache.spec import CacheSpec
from tokenmill.errors import ConfigError

TILE = 16
"""Rows that stay together. Products of torch compute the last rows of a matrix, less than so many, in another order."""


@dataclass(frozen=True)
class Rank:
    """One of `count` processes, by its number. Rank 0 has the scheduler; it is the process that a user began."""

    number: int = 0
    count: int = 1

    def share(self, total: int) -> range:
        """Choose this rank's part of `total` things in a row. Other ranks' parts are as long, or one longer or
        shorter.
        """
        return range(total * self.number // self.count, total * (self.number + 1) // self.count)


ALONE = Rank()


def divide(count: int, ranks: int) -> list[range]:
    """Divide `count` things that follow each other; the first ranks have one more where they do not divide evenly."""
    cuts = [count // ranks * rank + min(rank, count % ranks) for rank in range(ranks + 1)]
    return [range(first, end) for first, end in pairwise(cuts)]


def divide_rows(count: int, ranks: int, tile: int = TILE) -> list[range] | None:
    """Divide the rows of a matrix by whole tiles, of which the last may be shorter; None where a rank would get none,
    so that every rank has all of them.
    """
    tiles = -(-count // tile)
    if tiles < ranks:
        return None
    return [range(each.start * tile, min(each.stop * tile, count)) for each in divide(tiles, ranks)]


def divide_heads(kv_heads: Sequence[int], ranks: int) -> list[list[range]]:
    """Divide the kv heads of each layer: for each rank, its heads in each layer. ConfigError where a rank has none."""
    if (fewest := min(kv_heads)) < ranks:
        heads = f"{fewest} kv head{'s' * (fewest > 1)}"
        raise ConfigError("tensor_parallel", ranks, f"at most {fewest}: this model has {heads}, and a rank needs one")
    layers = [divide(count, ranks) for count in kv_heads]
    return [[layer[rank] for layer in layers] for rank in range(ranks)]


def cache_of_rank(spec: CacheSpec, rank: int, ranks: int) -> CacheSpec:
    """Describe the cache of one rank: as many slots, of its own heads."""
    heads = divide_heads([rows.num_kv_heads for rows in spec.rows], ranks)[rank]
    layers = zip(spec.rows, heads, strict=True)
    return replace(spec, layers=tuple(rows._replace(num_kv_heads=len(own)) for rows, own in layers))


def qkv_rows(kv_heads: range, num_heads: int, num_kv_heads: int, head_dim: int) -> list[range]:
    """Find the rows of these kv heads in the merged matrix of Q, K and V: of their query heads, of K, and of V."""
    group, first_k = num_heads // num_kv_heads, num_heads * head_dim
    first_v = first_k + num_kv_heads * head_dim
    first, end = kv_heads.start * head_dim, kv_heads.stop * head_dim
    return [
        range(first * group, end * group),
        range(first_k + first, first_k + end),
        range(first_v + first, first_v + end),
    ]


def whole_tiles(rows: Sequence[range], count: int, tile: int = TILE) -> list[range]:
    """Widen ranges of the rows of a matrix, in their order, to whole tiles of it; ranges that meet become one."""
    found: list[range] = []
    for each in rows:
        start, stop = each.start // tile * tile, min(-(-each.stop // tile) * tile, count)
        if found and start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(stop, found[-1].stop))
        else:
            found.append(range(start, stop))
    return found


def places(rows: Sequence[range], among: Sequence[range]) -> list[range]:
    """Find where ranges of rows lie, when the rows of the ranges `among`, which contain them, follow each other."""
    found = []
    for each in rows:
        before = 0
        for other in among:
            if other.start <= each.start and each.stop <= other.stop:
                first = before + each.start - other.start
                found.append(range(first, first + len(each)))
                break
            before += len(other)
    return found
