"""Texts that a step computes whole or not at all: every step is checked, with few blocks, few places and preemption."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integrity import check_scheduler
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence


def run(lengths: list[int], num_blocks: int, block_size: int, places: int, budget: int) -> list[list[int]]:
    """Run texts of these lengths to their end; return how many tokens each step has fed of each."""
    memory = Memory([RowBlocks(BlockAllocator(num_blocks, block_size), None)], prefix_cache=False)
    scheduler, steps = Scheduler(memory, places, budget, whole=True), list[list[int]]()
    texts = [
        Sequence(number, [1] * length, length, length, kept=Kept(), score_from=length - 1)
        for number, length in enumerate(lengths)
    ]
    for each in texts:
        scheduler.add(each)
    while not scheduler.idle:
        plan = scheduler.plan()
        fed = [(work.start, work.count, work.num_logits, len(work.sequence.tokens)) for work in plan.work]
        assert fed, "a step without work"
        assert all(start == 0 and count == length and not logits for start, count, logits, length in fed)
        assert len(fed) == 1 or sum(count for _, count, _, _ in fed) <= budget
        steps.append([count for _, count, _, _ in fed])
        scheduler.commit(plan, [[] for _ in plan.work])
        check_scheduler(scheduler)
    assert all(each.finish_reason == "scored" for each in texts)
    assert sorted(count for step in steps for count in step) == sorted(lengths)
    return steps


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        ([5, 5, 5], [[5, 5], [5]]),
        ([30, 5], [[30], [5]]),
        ([5, 30, 5], [[5, 5], [30]]),  # which is the first of the next step
        ([1], [[1]]),
    ],
)
def test_a_step_takes_the_texts_that_fit(lengths, steps):
    assert run(lengths, 64, 4, 8, 12) == steps


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(1, 8),
    st.integers(1, 50),
    st.integers(0, 20),
)
def test_all_texts_end_whatever_the_room(lengths, block_size, places, budget, spare):
    run(lengths, -(-max(lengths) // block_size) + spare, block_size, min(places, budget), budget)
