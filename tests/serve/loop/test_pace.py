"""Chunks of prompts are as long as the bound allows, by what tokens have cost."""

import pytest

from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.fairness import shares
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan, Sequence, Work
from tokenmill.serve.loop import limits as pace
from tokenmill.serve.loop.limits import FIRST_TOKENS, LEAST_TOKENS, MARGIN, Pace


@pytest.fixture
def clock(monkeypatch):
    """Steps take as long as the test says."""

    class Clock:
        now_s = 0.0

        def perf_counter(self):
            return self.now_s

    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def made(bound_s=0.2, most=512):
    scheduler = Scheduler(Memory([RowBlocks(BlockAllocator(64, 32))]), 4, most)
    return scheduler, Pace(scheduler, bound_s)


def step(observer, clock, count, seconds, drafts=()):
    sequence = Sequence(0, [1] * 2000, 2000, 2001)
    observer.phase("begin", None)
    observer.phase("plan", Plan([Work(sequence, 0, count, 1, drafts)]))
    clock.now_s += seconds
    observer.phase("deliver", None)


def test_before_anything_is_measured_chunks_are_short():
    scheduler, _ = made()
    assert scheduler.max_prompt_tokens == FIRST_TOKENS


@pytest.mark.parametrize(("cost_s", "tokens"), [(0.001, 150), (0.0001, 512), (0.1, LEAST_TOKENS)])
def test_a_chunk_takes_as_many_tokens_as_fit(clock, cost_s, tokens):
    scheduler, observer = made()
    for _ in range(20):
        count = scheduler.max_prompt_tokens
        step(observer, clock, count, count * cost_s)
    assert scheduler.max_prompt_tokens == pytest.approx(tokens, abs=1)


def test_what_a_step_takes_besides_is_counted(clock):
    scheduler, observer = made()
    for _ in range(40):
        count = scheduler.max_prompt_tokens
        step(observer, clock, count, 0.05 + count * 0.001)
    assert scheduler.max_prompt_tokens == pytest.approx(MARGIN * 200 - 50, abs=2)


def test_a_slow_step_counts_at_once_and_a_fast_one_by_and_by(clock):
    scheduler, observer = made()
    step(observer, clock, 100, 0.1)
    step(observer, clock, 100, 0.2)
    assert scheduler.max_prompt_tokens == 75
    step(observer, clock, 100, 0.1)
    assert scheduler.max_prompt_tokens == 100


def test_short_chunks_and_steps_without_prompts_say_nothing(clock):
    scheduler, observer = made()
    step(observer, clock, 100, 0.1)
    step(observer, clock, 9, 0.05)
    step(observer, clock, 1, 0.5)
    step(observer, clock, 5, 0.5, drafts=(1, 2, 3, 4))
    assert scheduler.max_prompt_tokens == 150
    step(observer, clock, 9, 0.5)  # this one took too long
    assert scheduler.max_prompt_tokens == LEAST_TOKENS


def test_chunks_of_one_token_are_measured_too(clock):
    scheduler, observer = made()
    step(observer, clock, FIRST_TOKENS, 20.0)  # the machine was busy with something else
    assert scheduler.max_prompt_tokens == LEAST_TOKENS
    sequences = [Sequence(number, [1] * 2000, 2000, 2001) for number in range(LEAST_TOKENS)]
    for _ in range(40):
        counts = shares([2000] * LEAST_TOKENS, scheduler.max_prompt_tokens)
        observer.phase("begin", None)
        observer.phase(
            "plan", Plan([Work(sequence, 0, count, 0) for sequence, count in zip(sequences, counts, strict=True)])
        )
        clock.now_s += sum(counts) * 0.001
        observer.phase("deliver", None)
    assert scheduler.max_prompt_tokens == pytest.approx(150, abs=1)
