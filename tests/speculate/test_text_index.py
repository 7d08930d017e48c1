"""The index of n-grams: its first and last places, and an index that points where no text is."""

import numpy as np
import pytest

from tokenmill.speculate.text_index import NGRAMS, WINDOW, PendingTexts, TextIndex, query_of

CAPACITY = 20


def tokens_of(*numbers):
    return np.array(numbers, np.int32)


def index_with(head, tokens=(5, 6, 7, 8)):
    """An index in which every head is this place, as damage may leave it, and no place has a link."""
    data = np.concatenate([np.full(WINDOW, -(1 << 31), np.int32), tokens_of(*tokens)])
    links = [np.zeros(len(data), np.int32) for _ in NGRAMS]
    return TextIndex(data, [np.full(4, head, np.int32) for _ in NGRAMS], links)


@pytest.mark.parametrize("place", [-(1 << 31), -1, 1, WINDOW - 1, WINDOW + 4, WINDOW + 5, (1 << 31) - 1])
def test_a_place_outside_the_texts_is_no_match(place):
    index = index_with(place)
    assert index.matches(1, query_of([5, 6, 7, 8]), int(index.heads[1][0]), 9) == []


def test_the_last_place_is_one():
    assert index_with(0).matches(1, query_of([5, 6, 7]), WINDOW + 3, 1) == [(3, WINDOW + 3)]


def test_the_first_place_has_the_window_of_separators_before_it():
    assert index_with(0, tokens=(5, 6)).matches(1, query_of([4, 5, 6]), WINDOW, 1) == []


@pytest.mark.parametrize("sizes", [[CAPACITY], [CAPACITY - 5, 4], [3] * 5])
def test_a_full_index_finds_the_end_of_its_last_text(sizes):
    """A separator stands behind each text, so that sizes add up to one more each, and CAPACITY + 1 in all."""
    index = PendingTexts(CAPACITY)
    texts = [tokens_of(*range(100 * number, 100 * number + size)) for number, size in enumerate(sizes)]
    for text in texts:
        assert index.has_room(len(text))
        index.add(text)
    assert not index.has_room(CAPACITY + 1 - sum(size + 1 for size in sizes))
    assert len(index.written()) == WINDOW + sum(size + 1 for size in sizes)
    assert index.written()[-2] == texts[-1][-1] and index.written()[-1] < 0


def test_a_text_of_the_capacity_has_room_and_a_longer_one_has_none():
    assert PendingTexts(CAPACITY).has_room(CAPACITY) and not PendingTexts(CAPACITY).has_room(CAPACITY + 1)


def test_the_last_of_what_is_kept_stays():
    index = PendingTexts(CAPACITY)
    for first in (10, 20, 30, 40):
        index.add(tokens_of(first, first + 1, first + 2))
    index.keep(0.5)
    kept = [number for number in index.written().tolist() if number >= 0]
    assert kept == [30, 31, 32, 40, 41, 42]
    index.keep(0.0)
    assert len(index.written()) == WINDOW
