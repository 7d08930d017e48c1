"""Assertions of the invariants of blocks, of the memory of texts, and of a scheduler."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain

from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.memory import Memory, Text
from tokenmill.schedule.scheduler import Scheduler


def check_blocks(allocator: BlockAllocator, tables: Iterable[Sequence[int]]) -> None:
    """Assert that reference counts equal the given block tables and that no block is leaked or named twice."""
    counts = Counter(chain.from_iterable(tables))
    counted = [counts[block] for block in range(allocator.num_blocks)]
    free, digests, blocks = allocator._free, allocator._digest_of, allocator._block_of
    assert counted == allocator.references, "reference counts differ from the block tables"
    assert set(free) == {block for block, count in enumerate(counted) if not count}, "free set is wrong"
    assert blocks == {digest: block for block, digest in digests.items()}, "names are wrong"


def check_memory(memory: Memory, texts: Sequence[Text]) -> None:
    """Assert the invariants of the blocks and of every text."""
    for kind in memory.kinds:
        kept = [text.kept for text in texts if len(text.kept.tables) > kind.at]
        check_blocks(kind.allocator, [each.tables[kind.at].blocks for each in kept])
        for each in kept:
            num_there = kind.can_keep(each, each.num_computed)
            is_in_flight = each.num_computed < max(each.tables[kind.at].ends, default=0)
            assert num_there == each.num_computed or is_in_flight, "entries that are still read are missing"


def check_scheduler(scheduler: Scheduler) -> None:
    """Assert the invariants of the blocks and of every sequence."""
    sequences = [*scheduler.running, *scheduler.waiting, *scheduler.parked]
    check_memory(scheduler.memory, sequences)
    for sequence in sequences:
        computed, length = sequence.kept.num_computed, len(sequence.tokens)
        assert 0 <= computed < length or sequence.score_from is not None or computed == length == 0
