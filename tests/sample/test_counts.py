"""Counts of tokens that are kept for a sequence equal counts that are made anew."""

import gc
import random
from collections import Counter

from tokenmill.sample import counts
from tokenmill.sample.counts import counts_of
from tokenmill.sample.state import rows_of
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import Sequence, Work
from tokenmill.settings.sampling_params import SamplingParams

PENALISED = Choosing(SamplingParams(repetition_penalty=1.2, presence_penalty=0.3))


def occurring(found) -> Counter:
    ids, numbers = found
    assert len(set(ids.tolist())) == len(ids)
    return Counter({token: int(number) for token, number in zip(ids.tolist(), numbers.tolist(), strict=True) if number})


def test_each_step_counts_what_is_new_and_its_drafts():
    chance = random.Random(1)
    sequence = Sequence(1, chance.choices(range(20), k=9), 9, 500, PENALISED)
    for _ in range(60):
        drafts = tuple(chance.choices(range(25), k=chance.randrange(4)))
        work = Work(sequence, len(sequence.tokens) - 1, 1 + len(drafts), 1 + len(drafts), drafts)
        for count, row in enumerate(rows_of(work)):
            tokens = [*sequence.tokens, *drafts[:count]]
            assert row.tokens == tokens and row.sequence is sequence
            assert occurring(row.occurring(0)) == Counter(tokens)
            assert occurring(row.occurring(row.output_start)) == Counter(tokens[9:])
        if chance.random() < 0.1:  # a rewind, or an edit: another list
            sequence.tokens = [*sequence.tokens[: chance.randrange(9, len(sequence.tokens) + 1)], 3]
        else:
            sequence.tokens += drafts[: chance.randrange(len(drafts) + 1)]
            sequence.tokens.append(chance.randrange(20))


def test_counts_end_with_their_sequence():
    sequence = Sequence(2, [1, 2, 2], 3, 9, PENALISED)
    before = len(counts._KEPT)
    counts_of(sequence, 0)
    assert len(counts._KEPT) == before + 1
    del sequence
    gc.collect()
    assert len(counts._KEPT) == before
