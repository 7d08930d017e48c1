"""Which guesses are worth making."""

from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import Sequence
from tokenmill.speculate.estimates import JUDGED, MatchChances


def decoding():
    return Sequence(1, [1, 2, 3], 3, 100, kept=Kept(2))


def test_after_a_long_match_all_tokens_are_worth_guessing():
    chances = MatchChances()
    assert chances.useful(decoding(), 100, 15) == 15


def test_a_text_that_repeats_nothing_is_still_judged_by_a_few_tokens():
    chances, sequence = MatchChances(), decoding()
    for _ in range(40):
        chances.learn(sequence, 2, [7], [8])
    assert chances.useful(sequence, 2, 15) == JUDGED
    assert chances.useful(sequence, 2, 3) == 3


def test_a_text_that_begins_to_repeat_is_found_again():
    chances, sequence = MatchChances(), decoding()
    for _ in range(40):
        chances.learn(sequence, 2, [7], [8])
    for _ in range(10):
        chances.learn(sequence, 20, [7] * JUDGED, [7] * JUDGED)
    assert chances.useful(sequence, 20, 15) == 15
