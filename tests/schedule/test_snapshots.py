"""Which states stay, in plain integers: what is found, computed again, and written to disk.

The figures are those of Qwen 3.5 4B: a state is as large as the rows of 1,536 tokens. A server of two processors has 16
sequences of 2,048 tokens by default, and by `num_states` of loader/resolve.py 64 slots for their states.
"""

import os
from itertools import pairwise
from random import Random

import pytest

from tests.counted_texts import BLOCK, STEP, CountedTexts
from tests.random_conversations import conversations
from tokenmill.schedule.memory import OPENING
from tokenmill.schedule.snapshots import SnapshotSlots

FAR = 1536
NUM_CONVERSATIONS = int(os.environ.get("TOKENMILL_CONVERSATIONS", "60"))


def tokens(random, count):
    return [random.randrange(1 << 30) for _ in range(count)]


def ends(texts):
    """Where snapshots stand, in order."""
    return sorted(snapshot.end for snapshot in texts.slots._snapshots.values())


def test_a_prompt_has_a_state_where_steps_and_itself_end():
    texts, random = CountedTexts(4096, 40), Random(0)
    texts.run(tokens(random, 1300), tokens(random, 100))
    near_the_end = (1300 - 1 - OPENING) // BLOCK * BLOCK
    assert ends(texts) == [STEP, 2 * STEP, near_the_end, *range(1312, 1400, BLOCK)]


@pytest.mark.parametrize("num_states", [4, 6, 64])
@pytest.mark.parametrize("has_answer", [True, False], ids=["whole", "without the answer"])
def test_the_second_turn_of_4000_tokens_computes_a_tenth_at_most(num_states, has_answer):
    """Without the answer: a template that leaves out what was thought also opens the answer in other words."""
    texts, random = CountedTexts(8192, num_states, FAR), Random(1)
    prompt, answer, more = tokens(random, 3600), tokens(random, 400), tokens(random, 60)
    assert texts.run(prompt, answer) == 3600
    second = [*prompt, *answer, *more] if has_answer else [*prompt[:-OPENING], *more]
    assert texts.run(second, tokens(random, 50)) <= len(more) + 2 * BLOCK + OPENING < 0.1 * len(second)


@pytest.mark.parametrize("num_states", [4, 23])
def test_50_turns_of_an_agent_find_99_of_100_tokens(num_states):
    texts, random = CountedTexts(32768, num_states, FAR), Random(2)
    prompt, stood, found = tokens(random, 15_500), 0, 0
    for turn in range(50):
        answer, result = tokens(random, random.randrange(20, 60)), tokens(random, random.randrange(20, 80))
        fed = texts.run(prompt, answer)
        if turn:
            found += len(prompt) - fed
        prompt = [*prompt, *answer]
        stood += len(prompt) if turn < 49 else 0
        prompt += result
    assert len(prompt) > 19_000 and found >= 0.99 * stood
    rows, states = texts.num_stored
    assert states * FAR <= 1.2 * rows * BLOCK, "states take more of the disk than rows"


def test_the_third_text_finds_a_state_where_the_second_went_another_way():
    texts, random = CountedTexts(8192, 40), Random(3)
    shared = tokens(random, 900)
    counts = [texts.run([*shared, *tokens(random, 300)], tokens(random, 10)) for _ in range(3)]
    assert counts == [1200, 1200 - STEP, 1200 - 900 // BLOCK * BLOCK]
    assert texts.recomputed == 900 // BLOCK * BLOCK - STEP


def test_the_snapshots_of_a_text_are_thinned_out_evenly():
    slots = SnapshotSlots(9, 1)
    hashes = [bytes([number]) for number in range(100)]
    for index in range(100):
        slot = slots.allocate()
        slots.take(slot, hashes, index, 0, 0)
        slots.release(slot)
    stand = [0, *sorted(snapshot.end for snapshot in slots._snapshots.values())]
    gaps = [second - first for first, second in pairwise(stand)]
    assert len(gaps) == 9 and stand[-1] == 100 and max(gaps) <= 2 * 100 / 9


def test_a_snapshot_goes_before_others_when_its_rows_are_gone():
    there = {b"a", b"b"}
    slots = SnapshotSlots(2, 1, is_reachable=there.__contains__)
    for name in (b"a", b"b"):
        slots.take(slot := slots.allocate(), [name], 0, 0, 0)
        slots.release(slot)
    there.discard(b"b")
    slots.allocate()
    assert slots.find(b"a") is not None and slots.find(b"b") is None


def test_a_slot_without_a_name_goes_first():
    slots = SnapshotSlots(2, 1)
    slots.take(named := slots.allocate(), [b"a"], 0, 0, 0)
    unnamed = slots.allocate()
    slots.release(named)
    slots.release(unnamed)
    assert slots.allocate() == unnamed


def test_of_snapshots_that_are_worth_the_same_the_longest_unused_goes_first():
    slots = SnapshotSlots(3, 1)
    held = {}
    for name in (b"a", b"b", b"c"):
        slots.take(slot := slots.allocate(), [name], 0, 0, 0)
        held[name] = slot
    for name in (b"c", b"b", b"a"):
        slots.release(held[name])
    gone = []
    for _ in held:
        slots.allocate()
        gone.append({name for name in held if slots.find(name) is None})
    assert gone == [{b"c"}, {b"c", b"b"}, {*held}]


def test_what_goes_to_disk():
    """In the midst of a text a state for so many tokens as it is large; at ends, what saves an eighth."""
    hashes = [bytes([number]) for number in range(100)]
    slots, written = SnapshotSlots(100, 10, tokens_per_state=200), []
    for index in range(100):
        slots.take(slots.allocate(), hashes, index, 0, 0)
        is_end = index in (28, 29, 80, 85, 99)
        if slots.begin_store(hashes[index], is_end) is not None:
            written.append((index + 1) * 10)
    assert written == [200, 290, 490, 690, 810, 1000]
    assert slots.begin_store(hashes[99], True) is None  # once is enough


def test_a_prompt_that_is_asked_again_is_found_but_for_a_block():
    texts, random = CountedTexts(4096, 40), Random(4)
    prompt = tokens(random, 700)
    counts = [texts.run(prompt, tokens(random, 5)) for _ in range(3)]
    assert counts[0] == 700 and counts[1] <= 2 * BLOCK + OPENING and counts[2] <= BLOCK


def hold(number, seed, texts, max_length=2048):
    """Hold so many conversations; restarts lose nothing here, as nothing lies on disk."""
    random = Random(seed)
    turns = conversations(random, number, (200, 1500), (20, 300), (20, 300), 1 << 30, max_length=max_length)
    said = None
    while True:
        try:
            turn = turns.send(said)
        except StopIteration:
            return texts.recomputed / texts.found
        said = None
        if turn is not None:
            prompt, count = turn
            texts.run(prompt, said := tokens(random, count))


def test_random_conversations_compute_little_again():
    """At most 5 % of what hits save; the first conversations, before any state is kept where they part, cost more."""
    share = hold(NUM_CONVERSATIONS, 1, CountedTexts(16 * 2048, 64, FAR, max_sequences=16))
    assert share <= (0.05 if NUM_CONVERSATIONS >= 1000 else 0.08)
