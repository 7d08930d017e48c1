"""What a plan asks for is carried out in its order: copies, then loads, then the work."""

import pytest
import torch

from tokenmill.cache.pool import ROWS
from tokenmill.engine.load import load
from tokenmill.errors import SnapshotError
from tokenmill.schedule.sequence import Copy, Load, Plan, Sequence

SIZE = 4


def source(pool, value):
    """Reads rows of one value; None: they cannot be read."""

    def rows(first, last):
        if value is None:
            raise SnapshotError("x.kv is gone")
        return filled(pool, last - first, value)

    return rows


def filled(pool, count, value):
    return {name: torch.full_like(rows, value) for name, rows in pool.read(torch.arange(count)).items()}


def values(pool, block):
    """The one value that all rows of a block have."""
    found = {number for rows in pool.read(pool.slots_of([block], SIZE)).values() for number in rows.unique().tolist()}
    assert len(found) == 1
    return found.pop()


@pytest.fixture
def runner(llama):
    loaded = load(llama, dtype="float32", block_size=SIZE, max_length=32, threads=1).core.loaded
    for block in range(3):
        loaded.pool.write(loaded.pool.slots_of([block], SIZE), filled(loaded.pool, SIZE, 1.0 + block))
    return loaded.runner


def test_blocks_are_copied_and_loaded_in_the_order_of_the_plan(runner):
    sequence = Sequence(0, [1] * 9, 9, 10)
    load = Load(ROWS, sequence, (0,), source(runner.pool, 7.0), 0, SIZE)
    assert runner.prepare(Plan([], [Copy(ROWS, 0, 1), load, Copy(ROWS, 0, 2)])) == []
    assert [values(runner.pool, block) for block in range(3)] == [7.0, 1.0, 7.0]


def test_rows_that_cannot_be_read_fail_their_sequence_alone(runner):
    first, second = Sequence(0, [1] * 9, 9, 10), Sequence(1, [1] * 9, 9, 10)
    loads = [
        Load(ROWS, first, (0,), source(runner.pool, None), 0, SIZE),
        Load(ROWS, second, (2,), source(runner.pool, 8.0), 0, SIZE),
    ]
    assert runner.prepare(Plan([], loads)) == [first]
    assert values(runner.pool, 2) == 8.0
