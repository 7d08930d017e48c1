"""The plan of a step: budget, order of service, prefix sharing, preemption, capacity."""

import pytest

from tests.simulated_cache import SimulatedCache, solo
from tokenmill.errors import CapacityError
from tokenmill.schedule.blocks import BlockAllocator, chain_digest
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence


def counts(plan) -> dict[int, int]:
    return {work.sequence.id: work.count for work in plan.work}


def test_a_long_prompt_is_fed_in_chunks_of_the_budget_and_only_the_last_gives_logits():
    cache = SimulatedCache(1, 64, 1, 10, False)
    cache.scheduler.add(Sequence(0, list(range(25)), 25, 27))
    plans = [cache.step() for _ in range(4)]
    assert [(w.start, w.count, w.num_logits) for plan in plans for w in plan.work] == [
        (0, 10, 0),
        (10, 10, 0),
        (20, 5, 1),
        (25, 1, 1),
    ]
    assert cache.scheduler.idle


def test_decoding_goes_before_prefill_and_everybody_is_promised_a_token():
    cache = SimulatedCache(8, 32, 4, 8, False)
    cache.scheduler.add(Sequence(0, [1] * 20, 20, 40))
    cache.scheduler.add(Sequence(1, [2] * 3, 3, 40))
    assert counts(cache.step()) == {0: 8}
    assert counts(cache.step()) == {0: 8}
    assert counts(cache.step()) == {0: 4, 1: 3}
    cache.scheduler.add(Sequence(2, [3] * 30, 30, 40))
    for _ in range(3):
        planned = counts(cache.step())
        assert planned[0] == planned[1] == 1
        assert planned[2] == 6


def test_the_second_sequence_with_the_same_beginning_feeds_only_its_own_end():
    cache = SimulatedCache(16, 4, 2, 64, True)
    prefix = [7, 8, 9, 1, 2, 3, 4, 5]
    cache.scheduler.add(Sequence(0, [*prefix, 6], 9, 11))
    cache.run()
    before = cache.num_fed
    cache.scheduler.add(Sequence(1, [*prefix, 0, 0], 10, 11))
    cache.run()
    assert cache.num_fed - before == 2


def test_a_prompt_of_whole_blocks_still_feeds_its_last_token():
    cache = SimulatedCache(16, 4, 2, 64, True)
    for number in range(2):
        sequence = Sequence(number, [1, 2, 3, 4, 5, 6, 7, 8], 8, 10)
        cache.scheduler.add(sequence)
        cache.run()
        assert sequence.tokens == solo([1, 2, 3, 4, 5, 6, 7, 8], 10, {})


def test_blocks_with_the_same_tokens_after_another_beginning_are_not_shared():
    assert chain_digest(chain_digest(b"", [1, 2]), [3, 4]) != chain_digest(chain_digest(b"", [2, 1]), [3, 4])
    assert chain_digest(b"", [1, 2, 3]) != chain_digest(chain_digest(b"", [1]), [2, 3])


def test_when_blocks_run_out_the_youngest_gives_way_and_all_texts_stand():
    cache = SimulatedCache(6, 4, 3, 64, False)
    sequences = [Sequence(number, [number] * 4, 4, 16) for number in range(3)]
    for sequence in sequences:
        cache.scheduler.add(sequence)
    cache.run()
    assert cache.scheduler.num_preemptions > 0
    for number, sequence in enumerate(sequences):
        assert sequence.tokens == solo([number] * 4, 16, {})


def test_a_sequence_that_could_never_finish_is_refused_with_the_numbers():
    scheduler = Scheduler(BlockAllocator(4, 16), 1, 16)
    with pytest.raises(CapacityError, match=r"5 needed, 4 available; change .*cache_tokens"):
        scheduler.add(Sequence(0, [1] * 10, 10, 65))


def test_a_fork_shares_its_blocks_until_one_of_the_two_writes():
    cache = SimulatedCache(8, 4, 2, 64, False)
    parent = Sequence(0, [1, 2, 3, 4, 5], 5, 12)
    cache.scheduler.add(parent)
    cache.step()
    child = cache.scheduler.fork(parent, 1)
    assert child.blocks == parent.blocks
    child.tokens[-1] = 99  # the two say different things from here on
    plan = cache.step()
    assert len(plan.copies) == 1, "only the last, partial block is copied"
    assert child.blocks[0] == parent.blocks[0]
    assert child.blocks[1] != parent.blocks[1]
    cache.run()


def test_drafts_never_run_past_the_end_of_a_sequence():
    cache = SimulatedCache(1, 16, 1, 16, False)
    sequence = Sequence(0, [1, 2, 3], 3, 6)
    cache.scheduler.add(sequence)
    cache.step()
    plan = cache.step({0: [0] * 10})
    assert plan.work[0].count <= 2
    cache.run()
    assert sequence.tokens == solo([1, 2, 3], 6, {})


def rewound(cache: SimulatedCache, first: list[int], then: list[int]) -> None:
    """Run a sequence over `first`, rewind it to two tokens, and let it go on with `then`."""
    sequence = Sequence(0, list(first), len(first), len(first) + 1, keep=True)
    cache.scheduler.add(sequence)
    cache.run()
    cache.scheduler.rewind(sequence, 2)
    sequence.tokens += then
    sequence.max_tokens = len(sequence.tokens) + 1
    cache.scheduler.resume(sequence)
    cache.run()


def test_a_block_that_is_written_over_after_a_rewind_is_not_found_under_its_old_name():
    cache = SimulatedCache(16, 4, 2, 64, True)
    first = [1, 2, 3, 4, 5, 6, 7, 8]
    rewound(cache, first, [9, 9])
    cache.scheduler.add(Sequence(1, [*first, 0], 9, 10))
    cache.run()  # the simulated cache checks what is read


def test_blocks_published_after_a_rewind_carry_the_name_of_their_new_past():
    cache = SimulatedCache(16, 4, 2, 64, True)
    first, then = [1, 2, 3, 4, 5, 6, 7, 8], [9, 9, 9, 9, 9, 9, 5, 5, 5, 5, 0]
    rewound(cache, first, then)
    cache.scheduler.add(Sequence(1, [*first, 0], 9, 10))  # publishes the old past again
    cache.run()
    cache.scheduler.add(Sequence(2, [*first, 5, 5, 5, 5, 0], 13, 14))
    cache.run()
