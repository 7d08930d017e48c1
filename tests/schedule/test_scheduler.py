"""The plan of a step: budget, order of service, prefix sharing, preemption, capacity."""

import pytest

from tests.simulated_cache import SimulatedCache, SimulatedStore, solo
from tokenmill.errors import CapacityError
from tokenmill.schedule.blocks import BlockAllocator, chain_digest
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import UNKNOWN, Sequence, unread_mark


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
    assert counts(cache.step()) == {0: 5, 1: 3}  # the short one need not wait for the long one
    assert counts(cache.step()) == {0: 7, 1: 1}
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
    scheduler = Scheduler(Memory([RowBlocks(BlockAllocator(4, 16))]), 1, 16)
    with pytest.raises(CapacityError, match=r"5 needed, 4 available; change .*cache_tokens"):
        scheduler.add(Sequence(0, [1] * 10, 10, 65))


def test_a_fork_shares_its_blocks_until_one_of_the_two_writes():
    cache = SimulatedCache(8, 4, 2, 64, False)
    parent = Sequence(0, [1, 2, 3, 4, 5], 5, 12)
    cache.scheduler.add(parent)
    cache.step()
    child = cache.fork(parent, 1)
    assert child.kept.blocks == parent.kept.blocks
    child.tokens[-1] = 99  # the two say different things from here on
    plan = cache.step()
    assert len(plan.moves) == 1, "only the last, partial block is copied"
    assert child.kept.blocks[0] == parent.kept.blocks[0]
    assert child.kept.blocks[1] != parent.kept.blocks[1]
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


def test_drafts_leave_a_token_of_the_budget_to_everybody_else():
    cache = SimulatedCache(8, 32, 3, 6, False)
    for number, prompt in enumerate(([1], [2], [3] * 30)):
        cache.scheduler.add(Sequence(number, prompt, len(prompt), 40))
    assert counts(cache.step()) == {0: 1, 1: 1, 2: 4}
    drafts = {0: [9] * 10, 1: [9] * 10}
    assert counts(cache.step(drafts)) == {0: 4, 1: 1, 2: 1}  # 0 has its token and three drafts


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


def test_a_list_of_tokens_only_grows_so_a_rewind_makes_a_new_one():
    cache, before = SimulatedCache(16, 4, 2, 64, True), [1, 2, 3, 4]
    sequence = Sequence(0, before, 4, 6)
    cache.scheduler.rewind(sequence, 2, [7, 8])
    assert (before, sequence.tokens) == ([1, 2, 3, 4], [1, 2, 7, 8])


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


def test_a_sequence_that_is_preempted_for_a_copy_of_its_own_is_not_planned():
    cache = SimulatedCache(3, 4, 3, 64, False)
    parent = Sequence(0, [1, 2, 3, 4, 5], 5, 12)
    cache.scheduler.add(parent)
    cache.step()
    children = [cache.fork(parent, number) for number in (1, 2)]
    plan = cache.step()  # the parent's copy takes the last free block; the first child finds none for its own
    assert counts(plan) == {0: 1}
    assert [child.kept.blocks for child in children] == [[], []]
    cache.run()
    for sequence in (parent, *children):
        assert sequence.tokens == solo([1, 2, 3, 4, 5], 12, {})


def test_a_block_that_is_copied_and_freed_in_a_plan_may_be_loaded_in_the_same_plan():
    store = SimulatedStore()
    store.blocks[b"saved"] = [hash((3,) * length) for length in range(1, 5)]
    cache = SimulatedCache(3, 4, 2, 64, True)
    parent = Sequence(0, [1, 2, 3, 4, 5, 6, 7, 8, 9], 9, 10, keep=True)
    cache.scheduler.add(parent)
    cache.run()
    child = cache.fork(parent, 1, keep=True)
    cache.scheduler.rewind(child, 7)
    child.tokens.append(0)
    child.max_tokens = 12
    cache.scheduler.resume(child)
    cache.scheduler.add(Sequence(2, [3, 3, 3, 3], 4, 5, kept=Kept(saved=[store.find(b"saved", 0)], num_saved=3)))
    plan = cache.step()  # checks what every sequence reads
    (_, source, target), load = plan.moves
    assert load.blocks == (source,)
    assert child.kept.blocks[1] == target
    cache.run()


def test_rows_that_cannot_be_loaded_are_computed():
    store = SimulatedStore()
    cache = SimulatedCache(8, 4, 2, 64, True, store)
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    cache.scheduler.add(Sequence(0, list(prompt), 9, 10))
    cache.run()
    cache.scheduler.allocator.forget_names()  # from now on they are in the store alone
    store.damaged.add(sorted(store.blocks)[0])
    sequences = [Sequence(1, list(prompt), 9, 12), Sequence(2, [5, 5], 2, 5)]
    for sequence in sequences:
        cache.scheduler.add(sequence)
    assert cache.step().loads
    cache.run()
    assert [sequence.tokens for sequence in sequences] == [solo(prompt, 12, {}), solo([5, 5], 5, {})]


def test_a_miss_in_the_store_costs_no_findable_block():
    cache = SimulatedCache(8, 4, 1, 64, True, SimulatedStore())
    allocator = cache.scheduler.allocator
    for number in range(2):
        cache.scheduler.add(Sequence(number, [number] * 16, 16, 17))
        cache.run()
    assert allocator.num_named == allocator.num_free == 8
    cache.scheduler.add(Sequence(2, [2] * 5, 5, 6))
    cache.run()
    assert allocator.num_named == 8 - 2 + 1  # it took two blocks and has filled one


def test_marks_of_unread_tokens_are_no_tokens_and_no_unknown_drafts():
    marks = [unread_mark(row) for row in range(100)]
    assert len({UNKNOWN, *marks}) == 101 and all(mark < 0 for mark in (UNKNOWN, *marks))
    assert Sequence(0, [1, marks[0]], 1, 4).has_unread_token
    assert not Sequence(0, [1, 2], 1, 4).has_unread_token


def test_nobody_waits_for_blocks_that_an_idle_sequence_holds():
    cache = SimulatedCache(20, 16, 4, 400, False)
    idle = Sequence(0, [1] * 288, 288, 288, keep=True, score_from=287)
    cache.scheduler.add(idle)
    cache.run()
    assert len(idle.kept.blocks) == 18
    cache.scheduler.add(Sequence(1, [2] * 4, 4, 15))
    cache.step()
    cache.scheduler.add(Sequence(2, [3] * 40, 40, 45))
    cache.step()
    assert [each.id for each in cache.scheduler.running] == [1, 2] and not idle.kept.blocks
