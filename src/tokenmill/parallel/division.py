"""The division of a model among ranks, in plain integers: the rows of matrices that a rank has, and its heads. Only
counts are divided, so that every rank finds the same.

Rows are divided, sums never: a rank computes whole dot products, so that the joined results have the bits of one
process. Heads need not divide evenly; matrices that do not follow heads are divided by tiles of rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

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


def times(own: range, size: int) -> range:
    """Find the rows of some heads, of so many rows each."""
    return range(own.start * size, own.stop * size)


def shifted(own: range, by: int) -> range:
    """Move a range."""
    return range(own.start + by, own.stop + by)


def part_rows(sizes: Sequence[int], parts: Sequence[Sequence[range]]) -> list[range]:
    """Find rows of a merged matrix, from ranges within each of its parts, which have so many rows."""
    firsts = accumulate(sizes, initial=0)
    return [shifted(each, first) for first, own in zip(firsts, parts, strict=False) for each in own]


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
