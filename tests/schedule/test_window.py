"""What a sequence keeps where every layer has a window, worked out by hand and by counting."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integrity import check_scheduler
from tests.simulated_cache import SimulatedCache, SimulatedStore, solo
from tokenmill.errors import CapacityError
from tokenmill.schedule.blocks import BlockAllocator
from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.memory import Memory
from tokenmill.schedule.row_blocks import RowBlocks, Window
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence, unread_mark

WINDOW, SIZE, LONG = 8, 4, 320  # a text of 40 windows


def rows(number: int) -> list[int]:
    return [number] * 5


@pytest.mark.parametrize(
    ("position", "row", "block", "kept"),
    [
        (0, 0, 0, 0),
        (7, 0, 0, 0),  # sees rows 0 to 7
        (8, 1, 0, 0),
        (10, 3, 0, 0),
        (11, 4, 1, 0),  # row 3 is the last of block 0, which stays as the block more
        (14, 7, 1, 0),
        (15, 8, 2, 1),
        (19, 12, 3, 2),
    ],
)
def test_which_rows_a_position_reads_and_which_block_is_kept(position, row, block, kept):
    window = Window(WINDOW, SIZE)
    assert (window.first_row(position), window.first_block(position), window.first_kept(position)) == (row, block, kept)


@pytest.mark.parametrize("position", [0, 1, 9, 1000])
def test_without_a_window_everything_is_read(position):
    window = Window(None, SIZE)
    assert window.first_row(position) == window.first_block(position) == window.first_kept(position) == 0
    assert window.max_blocks(position) == -(-position // SIZE)
    assert window.max_blocks(position, 9, 3) == 3 * -(-position // SIZE)


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 30))
def test_the_most_blocks_are_those_of_the_worst_place(size, block_size, num_fed):
    """Counted at every position of a text that is long enough to have each remainder."""
    window = Window(size, block_size)
    long = 3 * (size + 2 * block_size) + num_fed
    held = [-(-(start + num_fed) // block_size) - window.first_kept(start) for start in range(long)]
    assert max(held) == window.max_blocks(long + num_fed, num_fed)


@given(st.integers(1, 20), st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_several_sequences_hold_no_more_than_is_said(size, block_size, fed):
    window = Window(size, block_size)
    most = sum(window.max_blocks(10**6, each) for each in fed)
    assert most <= window.max_blocks(10**6, sum(fed), len(fed))
    assert window.max_blocks(3, sum(fed), len(fed)) <= len(fed) * -(-3 // block_size)


def test_a_text_of_forty_windows_in_a_cache_of_three():
    """Before a step at position s the rows from s - 7 on are there, and a block more. A step of 9 tokens from s = 9 on
    reads the rows 2 to 17, of blocks 0 to 4; from s = 18 on 11 to 26, of blocks 2 to 6, and block 1 is kept: 6 blocks.
    A step of one token holds (8 + 12 - 3 + 1) // 4 = 4 blocks at the most."""
    cache = SimulatedCache(6, SIZE, 1, 9, prefix_cache=True, window=WINDOW)
    sequence = Sequence(0, [1, 2] * 100, 200, LONG)
    cache.scheduler.add(sequence)
    most: dict[bool, int] = {}
    while not cache.scheduler.idle:
        work = cache.step().work[0]
        most[work.count == 1] = max(most.get(work.count == 1, 0), len(sequence.kept.blocks))
    assert sequence.tokens == solo([1, 2] * 100, LONG, {}) and cache.scheduler.num_preemptions == 0
    assert cache.max_used == 6 and most[True] == 4 and cache.num_fed == LONG - 1


def test_a_cache_that_holds_less_than_a_step_feeds_less():
    """5 blocks hold 20 rows; from position s on, s - 7 … s and a block before them are there."""
    cache = SimulatedCache(5, SIZE, 1, 64, prefix_cache=False, window=WINDOW)
    sequence = Sequence(0, [3] * 100, 100, 110)
    cache.scheduler.add(sequence)
    assert [cache.step().work[0].count for _ in range(4)] == [20, 8, 8, 8]  # 20: blocks 2 to 4 stay, and so on
    cache.run()
    assert sequence.tokens == solo([3] * 100, 110, {}) and cache.num_fed == 109


def test_what_a_long_text_needs_is_what_its_window_needs():
    scheduler = Scheduler(Memory([RowBlocks(BlockAllocator(4, SIZE), Window(WINDOW, SIZE))]), 1, 16)
    scheduler.check_length(10**6)
    with pytest.raises(CapacityError, match="4 needed, 3 available"):
        Scheduler(Memory([RowBlocks(BlockAllocator(3, SIZE), Window(WINDOW, SIZE))]), 1, 16).check_length(10**6)
    Scheduler(Memory([RowBlocks(BlockAllocator(3, SIZE), Window(WINDOW, SIZE))]), 1, 16).check_length(12)


def test_many_long_texts_share_a_cache_and_give_way():
    cache = SimulatedCache(9, SIZE, 3, 9, prefix_cache=True, window=WINDOW)
    sequences = [Sequence(number, rows(number), 5, 90) for number in range(5)]
    for sequence in sequences:
        cache.scheduler.add(sequence)
    cache.run()
    assert [each.tokens for each in sequences] == [solo(rows(number), 90, {}) for number in range(5)]
    assert cache.scheduler.num_preemptions > 0 and cache.scheduler.allocator.num_free == 9


def parked(cache, length=60, **fields):
    sequence = Sequence(0, [1, 3] * (length // 2), length, length, keep=True, score_from=length - 1, **fields)
    cache.scheduler.add(sequence)
    cache.run()
    cache.scheduler.rewind(sequence, length)
    sequence.score_from = None
    return sequence


def continued(cache, sequence, more=5):
    sequence.num_prompt_tokens, sequence.max_tokens = len(sequence.tokens), len(sequence.tokens) + more
    wanted = solo(sequence.tokens, sequence.max_tokens, {})
    before = cache.num_fed
    cache.scheduler.resume(sequence)
    cache.run()
    assert sequence.tokens == wanted
    return cache.num_fed - before - more + 1  # tokens of the prompt that were fed


def test_going_back_by_a_block_computes_nothing_anew():
    """59 rows: a query at 59 reads row 52 of block 13, and block 12 is kept. One at 56 reads from row 49 on."""
    cache = SimulatedCache(40, SIZE, 1, 64, prefix_cache=False, window=WINDOW)
    sequence = parked(cache)
    assert (sequence.kept.num_computed, sequence.kept.first_row) == (59, 48)
    cache.scheduler.rewind(sequence, 56, [0])
    assert sequence.kept.num_computed == 56 and continued(cache, sequence) == 1


def test_going_back_into_what_was_given_back_computes_all_tokens():
    cache = SimulatedCache(40, SIZE, 1, 64, prefix_cache=False, window=WINDOW)
    sequence = parked(cache)
    cache.scheduler.rewind(sequence, 54, [0])
    assert sequence.kept == Kept() and continued(cache, sequence) == 55


def test_what_was_given_back_is_found_again_while_nobody_took_it():
    """After 54 tokens that are alike, 13 blocks are full: the first 52 rows are found."""
    cache = SimulatedCache(40, SIZE, 1, 64, prefix_cache=True, window=WINDOW)
    sequence = parked(cache)
    cache.scheduler.rewind(sequence, 54, [0])
    assert continued(cache, sequence) == 3
    check_scheduler(cache.scheduler)


def test_a_fork_keeps_what_the_first_gives_back():
    cache = SimulatedCache(40, SIZE, 2, 64, prefix_cache=False, window=WINDOW)
    first = parked(cache)
    other = cache.fork(first, 1, keep=True)
    assert other.kept.blocks == first.kept.blocks
    continued(cache, first, 40)
    check_scheduler(cache.scheduler)
    assert continued(cache, other, 1) == 1


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_prefix_needs_the_blocks_of_the_window_alone(on_disk):
    """A prompt of 50 tokens can begin at 48: a query there reads the rows from 41 on, of blocks 10 and 11."""
    cache = SimulatedCache(40, SIZE, 1, 64, True, SimulatedStore(), window=WINDOW)
    prompt = [1, 3] * 25
    cache.scheduler.add(Sequence(0, list(prompt), 50, 51))
    cache.run()
    if on_disk:
        cache.scheduler.allocator.forget_names()
        assert len(cache.store.blocks) == 12
        for digest in list(cache.store.blocks)[:10]:
            del cache.store.blocks[digest]
    sequence = Sequence(1, list(prompt), 50, 55)
    cache.scheduler.add(sequence)
    plan = cache.step()
    assert sequence.num_cached_tokens == 48 and sequence.kept.first_row == 40
    assert [len(load.blocks) for load in plan.loads] == [1, 1] * on_disk
    cache.run()
    assert sequence.tokens == solo(prompt, 55, {})
    check_scheduler(cache.scheduler)


def test_a_prefix_with_a_gap_in_its_window_begins_before_the_gap():
    """Block 10 is gone: after 40 tokens, of which blocks 8 and 9 are read, the text can go on."""
    cache = SimulatedCache(40, SIZE, 1, 64, True, SimulatedStore(), window=WINDOW)
    prompt = [1, 3] * 25
    cache.scheduler.add(Sequence(0, list(prompt), 50, 51))
    cache.run()
    cache.scheduler.allocator.forget_names()
    del cache.store.blocks[list(cache.store.blocks)[10]]
    sequence = Sequence(1, list(prompt), 50, 55)
    cache.scheduler.add(sequence)
    cache.step()
    assert sequence.num_cached_tokens == 40
    cache.run()
    assert sequence.tokens == solo(prompt, 55, {})


def saved_rows(tokens, first_saved):
    """A file with the rows from first_saved on; it gives something wrong in the place of those before it."""

    def read(first, last):
        return {"rows": [hash(tuple(tokens[: p + 1])) if p >= first_saved else "none" for p in range(first, last)]}

    return read


@pytest.mark.parametrize(("first_saved", "num_fed"), [(0, 1), (43, 1), (44, 52), (45, 52)])
def test_a_file_serves_if_it_begins_early_enough(first_saved, num_fed):
    """51 rows of 52 tokens: a query at 51 reads from 44 on, of block 11. A file without row 43 might not serve once
    the last token is fed again."""
    cache = SimulatedCache(40, SIZE, 1, 64, True, SimulatedStore(), window=WINDOW)
    tokens = [1, 3] * 26
    rows = Kept(saved=[saved_rows(tokens, first_saved)], first_saved=first_saved, num_saved=51)
    sequence = Sequence(0, list(tokens), 52, 60, kept=rows)
    cache.scheduler.add(sequence)
    cache.run()
    assert cache.num_fed - 7 == num_fed
    assert sequence.tokens == solo(tokens, 60, {})
    cache.scheduler.add(again := Sequence(1, list(tokens), 52, 60))  # no block with rows that were not there is found
    cache.run()
    assert again.tokens == solo(tokens, 60, {})


def test_a_block_that_a_file_fills_in_part_is_not_shared():
    """The file begins at 41, within block 10: a query at 49 reads from 42 on. A query at 48 may read row 41 and finds
    it; whoever begins with the same tokens and is shorter would read row 40, which nobody has computed."""
    cache = SimulatedCache(40, SIZE, 1, 64, True, SimulatedStore(), window=WINDOW)
    tokens = [1, 3] * 25
    rows = Kept(saved=[saved_rows(tokens, 41)], first_saved=41, num_saved=49)
    cache.scheduler.add(Sequence(0, list(tokens), 50, 60, kept=rows))
    cache.step()
    assert cache.num_fed == 1 and len(cache.store.blocks) == 1  # block 11 alone
    cache.run()
    for length in range(42, 50):
        sequence = Sequence(length, tokens[:length], length, length + 3)
        cache.scheduler.add(sequence)
        cache.run()
        assert sequence.tokens == solo(tokens[:length], length + 3, {})


def test_a_step_in_flight_keeps_the_blocks_that_it_reads():
    """The next step is planned before the commit of the first: what the first gives back, it gives back then."""
    scheduler = Scheduler(Memory([RowBlocks(BlockAllocator(40, SIZE), Window(WINDOW, SIZE))]), 1, 16)
    sequence = Sequence(0, [1] * 30, 30, 60)
    scheduler.add(sequence)
    first = scheduler.plan()
    scheduler.advance(first, [[]])
    second = scheduler.plan()
    assert second.work[0].start == 16 and sequence.kept.first_row == 0
    scheduler.commit(first, [[]], is_advanced=True)
    assert sequence.kept.first_row == 4  # the second reads the rows from 9 on, and a block more stays
    scheduler.advance(second, [[unread_mark(0)]])
    third = scheduler.plan()
    assert third.work[0].start == 30 and sequence.kept.first_row == 4
    scheduler.commit(second, [[7]], is_advanced=True)
    assert sequence.kept.first_row == 16
    check_scheduler(scheduler)


@pytest.mark.parametrize("num_blocks", [4, 5, 6, 7, 9, 12])
def test_steps_that_overlap_give_the_same_texts(num_blocks):
    cache = SimulatedCache(num_blocks, SIZE, 2, 9, prefix_cache=True, window=WINDOW)
    sequences = [Sequence(number, [number, 3] * 10, 20, 90) for number in range(2)]
    for sequence in sequences:
        cache.scheduler.add(sequence)
    for _ in range(60):
        cache.overlapped(7)
    assert [each.tokens for each in sequences] == [solo([number, 3] * 10, 90, {}) for number in range(2)]
    assert cache.scheduler.idle and cache.scheduler.allocator.num_free == num_blocks


def test_a_sequence_waits_while_a_step_in_flight_fills_the_cache():
    scheduler = Scheduler(Memory([RowBlocks(BlockAllocator(4, SIZE), Window(WINDOW, SIZE))]), 1, 64)
    sequence = Sequence(0, [1] * 30, 30, 60)
    scheduler.add(sequence)
    first = scheduler.plan()
    assert first.work[0].count == 16
    scheduler.advance(first, [[]])
    assert not scheduler.plan().work and sequence in scheduler.running
    scheduler.commit(first, [[]], is_advanced=True)
    assert scheduler.plan().work[0].count == 4
