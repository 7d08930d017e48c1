"""Suffix: the longest suffix that occurred before, and the most frequent continuation of it."""

import random
from collections import Counter

import pytest

from tokenmill.schedule.keeps import Kept
from tokenmill.schedule.sequence import Sequence
from tokenmill.speculate.proposer import ProposerContext
from tokenmill.speculate.suffix import CERTAIN, LEAD, SHORTEST, Guess, Suffix, SuffixAutomaton


def longest_match(tokens):
    """Length of the longest suffix that ends elsewhere too."""
    lengths = range(len(tokens) - 1, 0, -1)
    return next((n for n in lengths if any(tokens[i - n : i] == tokens[-n:] for i in range(n, len(tokens)))), 0)


@pytest.mark.parametrize("vocabulary", [2, 3, 6, 20])
def test_the_longest_match_and_what_followed_it_most(vocabulary):
    for seed in range(60):
        numbers, automaton, tokens = random.Random(seed), SuffixAutomaton(), []
        for _ in range(numbers.randrange(5, 50)):
            tokens.append(numbers.randrange(vocabulary))
            automaton.append(tokens[-1])
            guessed, matched = automaton.guess(8), automaton.matched
            assert matched == longest_match(tokens)
            assert bool(guessed) == (matched >= SHORTEST)
            if guessed:
                ends = [i for i in range(matched, len(tokens)) if tokens[i - matched : i] == tokens[-matched:]]
                followers = Counter(tokens[i] for i in ends)
                assert followers[guessed[0]] == max(followers.values())


def test_a_text_that_repeats_itself_is_taken_to_go_on_so():
    automaton = SuffixAutomaton()
    for token in [1, 2, 3, 1, 2, 3]:
        automaton.append(token)
    assert (automaton.guess(7), automaton.matched) == ([1, 2, 3, 1, 2, 3, 1], 3)


def test_no_guess_is_longer_than_the_limit():
    automaton = SuffixAutomaton()
    for token in [1, 2, 3, 4, 1, 2]:
        automaton.append(token)
    assert (automaton.guess(0), automaton.matched) == ([], 2)
    assert (automaton.guess(1), automaton.matched) == ([3], 2)


def decoding(tokens, number=1):
    return Sequence(number, list(tokens), len(tokens), 100, kept=Kept(len(tokens) - 1))


def test_a_sequence_that_was_rewound_is_guessed_by_what_it_is_now():
    proposer, sequence = Suffix(), decoding([5, 6, 7, 8, 5, 6])
    assert proposer.propose([sequence], 2, {}) == {1: [7, 8]}
    sequence.tokens[:] = [1, 2, 3, 1, 2]
    sequence.kept.num_computed = 4
    assert proposer.propose([sequence], 1, {}) == {1: [3]}
    sequence.tokens[2:] = [9, 9, 9, 1, 2]
    sequence.kept.num_computed = 6
    assert proposer.propose([sequence], 1, {}) == {1: [9]}


def test_sequences_that_compute_a_prompt_are_left_out():
    sequence = decoding([1, 2, 1, 2])
    sequence.kept.num_computed = 1
    assert Suffix().propose([sequence], 4, {}) == {}


class Store:
    """Guesses the same after a match of a given length, and keeps what it is given."""

    def __init__(self, matched=0):
        self.matched, self.kept = matched, []

    def guess(self, tokens, limit):
        return [70, 71, 72][:limit], self.matched

    def add(self, tokens):
        self.kept.append(list(tokens))


def test_the_store_is_asked_where_it_knows_a_longer_suffix():
    """The text itself has a suffix of 2 tokens."""
    sequence = decoding([5, 6, 7, 8, 5, 6])
    for matched, guess in ((1, Guess([7, 8], 2)), (2, Guess([7, 8], 2)), (3, Guess([70, 71], 3, True))):
        assert Suffix(ProposerContext(False, store=Store(matched))).guess(sequence, 2) == guess
    sequence.kept.salt = b"tenant"
    assert Suffix(ProposerContext(False, store=Store(99))).guess(sequence, 2) == Guess([7, 8], 2)


def test_a_long_match_of_its_own_is_certain():
    for matched, is_stored in ((CERTAIN - 1, True), (CERTAIN, False)):
        sequence = decoding([*range(100, 100 + matched), 1, *range(100, 100 + matched)])
        assert Suffix(ProposerContext(False, store=Store(99))).guess(sequence, 2).is_stored is is_stored


def test_only_what_is_useful_is_guessed():
    asked = []

    def useful(sequence, matched, limit):
        asked.append((matched, limit))
        return 1

    assert Suffix().guess(decoding([5, 6, 7, 8, 5, 6]), 2, useful).tokens == [7]
    assert Suffix().guess(decoding([5, 6, 7, 8, 9, 6]), 2, useful).tokens == []
    assert asked == [(2, 2)]  # not for the match of one token


def test_a_text_is_stored_from_a_little_before_what_is_new():
    store, sequence = Store(), decoding(range(200))
    proposer = Suffix(ProposerContext(False, store=store))
    proposer.ended(sequence)
    sequence.tokens += range(200, 210)
    proposer.ended(sequence)
    assert store.kept == [list(range(200)), list(range(200 - LEAD, 210))]
    del sequence.tokens[100:]  # rewound
    proposer.ended(sequence)
    assert store.kept[-1] == list(range(100 - LEAD, 100))


def test_what_is_not_stored():
    store = Store()
    proposer = Suffix(ProposerContext(False, store=store))
    salted, scored = decoding([1, 2]), decoding([1, 2], number=2)
    salted.kept.salt, scored.score_from = b"tenant", 0
    for sequence in (salted, scored):
        proposer.ended(sequence)
    Suffix().ended(decoding([1, 2]))
    assert store.kept == []
