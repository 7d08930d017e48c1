"""Clients share places, prompts share steps."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integrity import check_scheduler
from tests.simulated_cache import SimulatedCache, solo
from tokenmill.schedule.fairness import shares
from tokenmill.schedule.sequence import Sequence


def text(number, length, end, client=b"", **more):
    return Sequence(number, [number % 50] * length, length, end, client=client, **more)


def running(cache):
    return [sequence.id for sequence in cache.scheduler.running]


@pytest.mark.parametrize(
    ("pending", "budget", "taken"),
    [
        ([], 8, []),
        ([20], 8, [8]),
        ([20, 3], 8, [5, 3]),
        ([20, 30, 3], 9, [4, 2, 3]),
        ([2, 30], 8, [2, 6]),
        ([20, 20, 20], 2, [1, 1, 1]),
    ],
)
def test_shares(pending, budget, taken):
    assert shares(pending, budget) == taken


@given(st.lists(st.integers(2, 100), max_size=8), st.integers(1, 200))
def test_shares_spend_the_budget_and_give_each_a_token(pending, budget):
    taken = shares(pending, budget)
    assert all(1 <= own <= most for own, most in zip(taken, pending, strict=True))
    assert sum(taken) == min(max(budget, len(pending)), sum(pending))


def test_a_short_prompt_does_not_wait_for_a_long_one():
    cache = SimulatedCache(64, 16, 4, 16, False)
    cache.scheduler.add(text(0, 400, 402))
    cache.step()
    cache.scheduler.add(text(1, 8, 10))
    cache.step()
    cache.step()
    assert cache.scheduler.running[0].kept.num_computed < 60 and running(cache) == [0]  # 1 has ended


def test_a_client_gets_a_place_though_another_has_taken_all():
    cache = SimulatedCache(64, 16, 4, 64, False)
    for number in range(12):
        cache.scheduler.add(text(number, 4, 60, b"many"))
    cache.step()
    assert running(cache) == [0, 1, 2, 3]
    cache.scheduler.add(text(20, 4, 60, b"one"))
    cache.step()
    assert running(cache) == [0, 1, 2, 20]
    assert cache.scheduler.num_preemptions == 1
    for _ in range(20):
        cache.step()
    assert running(cache) == [0, 1, 2, 20] and cache.scheduler.num_preemptions == 1
    check_scheduler(cache.scheduler)


def test_clients_take_turns():
    cache = SimulatedCache(64, 16, 1, 64, False)
    for number in range(6):
        cache.scheduler.add(text(number, 8, 10, b"many"))
    for number in range(10, 13):
        cache.scheduler.add(text(number, 8, 10, b"few"))
    order = []
    while not cache.scheduler.idle:
        cache.step()
        order += [sequence for sequence in running(cache) if sequence not in order]
    assert order == [0, 10, 1, 11, 2, 12, 3, 4, 5]


def test_being_away_saves_up_no_turns():
    cache = SimulatedCache(64, 16, 1, 64, False)
    for number in range(4):
        cache.scheduler.add(text(number, 8, 10, b"first"))
        while not cache.scheduler.idle:
            cache.step()
    for number in range(10, 14):
        cache.scheduler.add(text(number, 8, 10, b"first"))
        cache.scheduler.add(text(number + 10, 8, 10, b"second"))
    order = []
    while not cache.scheduler.idle:
        cache.step()
        order += [sequence for sequence in running(cache) if sequence not in order]
    assert order in ([10, 20, 11, 21, 12, 22, 13, 23], [20, 10, 21, 11, 22, 12, 23, 13])


def test_priority_goes_before_fairness():
    cache = SimulatedCache(64, 16, 1, 64, False)
    cache.scheduler.add(text(0, 4, 30, b"many", priority=-1))
    cache.step()
    cache.scheduler.add(text(1, 4, 30, b"one"))
    cache.step()
    assert running(cache) == [0]
    cache.scheduler.add(text(2, 4, 30, b"many", priority=-1))
    while running(cache) == [0]:
        cache.step()
    cache.step()
    assert running(cache) == [2]


def test_prompts_are_limited_only_while_others_decode():
    cache = SimulatedCache(64, 16, 4, 64, False)
    cache.scheduler.max_prompt_tokens = 10
    cache.scheduler.add(text(0, 40, 80))
    cache.step()
    assert cache.scheduler.running[0].kept.num_computed == 40
    cache.scheduler.add(text(1, 40, 80))
    plan = cache.step()
    assert [work.count for work in plan.work] == [1, 10]


@pytest.mark.parametrize("seed", range(40))
def test_any_mixture_of_clients_and_priorities_comes_to_its_end(seed):
    draw = random.Random(seed)
    cache = SimulatedCache(draw.randint(6, 30), 4, draw.randint(1, 4), draw.randint(4, 40), draw.random() < 0.5)
    cache.scheduler.max_prompt_tokens = draw.randint(1, 40)
    sequences = []
    for number in range(15):
        length = draw.randint(1, 12)
        client, priority = bytes([draw.randrange(3)]), draw.choice((0, 0, 0, 1, -1))
        prompt = [draw.randrange(5) for _ in range(length)]
        sequences.append(
            Sequence(number, prompt, length, length + draw.randint(1, 12), client=client, priority=priority)
        )
        cache.scheduler.add(sequences[-1])
        cache.step()
    for _ in range(3000):
        if cache.scheduler.idle:
            break
        cache.step()
        check_scheduler(cache.scheduler)
    assert cache.scheduler.idle
    for each in sequences:
        assert each.tokens == solo(each.tokens[: each.num_prompt_tokens], each.max_tokens, each.choosing.stop_ids)


def test_a_better_priority_takes_a_place_and_blocks():
    """The last of the worst priority gives way, one in a step, and goes on later with the same text."""
    for num_blocks, max_sequences in ((64, 2), (6, 4)):  # places are scarce, then blocks
        cache = SimulatedCache(num_blocks, 16, max_sequences, 64, False)
        worse = [text(number, 20, 40, priority=5) for number in range(2)]
        for sequence in worse:
            cache.scheduler.add(sequence)
        cache.step()
        assert running(cache) == [0, 1]
        cache.scheduler.add(better := text(9, 40, 45, priority=1))
        cache.scheduler.add(same := text(3, 4, 45, priority=5))
        cache.step()
        assert running(cache)[0] == 9 and len(running(cache)) <= 2 and cache.scheduler.num_preemptions >= 1
        while not cache.scheduler.idle:
            cache.step()
            check_scheduler(cache.scheduler)
        for sequence in (*worse, better, same):
            start = sequence.num_prompt_tokens
            assert sequence.tokens == solo(sequence.tokens[:start], sequence.max_tokens, {})
