"""At the limit of thinking the closing mark is what comes next, token by token, and nowhere else."""

import pytest

from tokenmill.schedule.choosing import ThinkingBudget

OPEN, CLOSE, TWO = (7,), (8,), (8, 9)


@pytest.mark.parametrize(
    ("thinking", "output", "forced"),
    [
        (ThinkingBudget(3, OPEN, CLOSE, True), [1, 2], None),
        (ThinkingBudget(3, OPEN, CLOSE, True), [1, 2, 3], 8),
        (ThinkingBudget(3, OPEN, CLOSE, True), [1, 2, 3, 8], None),
        (ThinkingBudget(3, OPEN, CLOSE, True), [1, 8, 3], None),  # it has ended by itself
        (ThinkingBudget(3, OPEN, CLOSE, False), [1, 2, 3, 4], None),  # it does not think
        (ThinkingBudget(3, OPEN, CLOSE, False), [7, 1, 2], None),
        (ThinkingBudget(3, OPEN, CLOSE, False), [7, 1, 2, 3], 8),
        (ThinkingBudget(0, OPEN, CLOSE, True), [], 8),
        (ThinkingBudget(0, OPEN, CLOSE, False), [], None),
        (ThinkingBudget(0, OPEN, CLOSE, False), [7], 8),
        (ThinkingBudget(0, OPEN, CLOSE, False), [5], None),
        (ThinkingBudget(3, OPEN, TWO, True), [1, 2, 3], 8),
        (ThinkingBudget(3, OPEN, TWO, True), [1, 2, 3, 8], 9),
        (ThinkingBudget(3, OPEN, TWO, True), [1, 2, 3, 8, 9], None),
        (ThinkingBudget(3, OPEN, TWO, True), [1, 2, 8], 9),  # the mark had begun
        (ThinkingBudget(3, OPEN, TWO, True), [1, 2, 8, 9], None),
        (ThinkingBudget(3, OPEN, TWO, True), [1, 8, 9], None),
        (ThinkingBudget(2, OPEN, TWO, True, lambda tokens: 5 in tokens), [1, 5], None),  # the mark in other tokens
    ],
)
def test_the_mark_that_has_to_come(thinking, output, forced):
    assert thinking.forced(output) == forced
    assert forced is None or thinking.concerns(len(output), len(output) + 1)
    assert forced is None or len(output) < thinking.num_concerned
