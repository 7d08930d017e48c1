"""The index of n-grams: its first and last places, and an index that points where no text is."""

import json
import os
import zlib

import numpy as np
import pytest

from tokenmill.errors import SnapshotError
from tokenmill.speculate import text_index as module
from tokenmill.speculate.text_index import (
    BYTES_PER_TOKEN,
    NGRAMS,
    WINDOW,
    PendingTexts,
    Segment,
    TextIndex,
    is_segment,
    joined,
    query_of,
    write_segment,
)

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


GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, of which powers weigh the tokens
SEPARATOR, PADDING = -(1 << 31), 1 - (1 << 31)


def test_what_is_looked_for_by_hand():
    query = query_of([7, 5])
    tail = [PADDING] * (WINDOW - 2) + [7, 5]
    assert query.token == 5
    assert query.near == sum((token % (1 << 32)) << 32 * i for i, token in enumerate(tail[-8:]))
    assert query.far == sum((token % (1 << 32)) << 32 * i for i, token in enumerate(tail))
    eight, three = (sum(token * GOLDEN ** (1 + i) for i, token in enumerate(tail[: -size - 1 : -1])) for size in NGRAMS)
    assert query.keys == [eight % (1 << 64), three % (1 << 64)]
    assert query_of(range(1000)) == query_of(range(900, 1000)) != query_of(range(899, 999))


def found(index: TextIndex, tail, number: int = 1, count: int = 99) -> list[tuple[int, int]]:
    """Lengths, and the places behind them in the texts, of matches of the n-grams of that number."""
    query = query_of(tail)
    at = index.heads[number][query.keys[number] % index.num_slots]
    return [(length, place - WINDOW) for length, place in index.matches(number, query, at, count)]


def pending(*texts):
    index = PendingTexts(500)
    for text in texts:
        index.add(tokens_of(*text))
    return index


@pytest.fixture(params=["pending", "segment"])
def index_of(request, tmp_path):
    """Texts in memory, and in a file."""

    def make(*texts):
        index = pending(*texts)
        if request.param == "pending":
            return index
        write_segment(tmp_path / "x.texts", index.written(), "me")
        return Segment(tmp_path / "x.texts", "me")

    return make


@pytest.mark.parametrize("size", [3, 7, 8, 9, 63, 64, 65])
def test_lengths_are_told_up_to_the_window(index_of, size):
    text = list(range(1, 101))
    index = index_of(text)
    assert found(index, text[:size]) == [(min(size, WINDOW), size)]
    assert found(index, text[:size], number=0) == ([(min(size, WINDOW), size)] if size >= 8 else [])
    assert found(index, [0, *text[10 : 10 + size]]) == [(min(size, WINDOW), 10 + size)]


def test_the_latest_comes_first_and_no_more_than_are_asked_for(index_of):
    index = index_of([1, 2, 3, 9, 5, 1, 2, 3, 8], [6, 1, 2, 3, 7])
    assert found(index, [1, 2, 3]) == [(3, 14), (3, 8), (3, 3)]
    assert found(index, [5, 1, 2, 3]) == [(3, 14), (4, 8), (3, 3)]
    assert [len(found(index, [1, 2, 3], count=count)) for count in (0, 1, 2, 3)] == [0, 1, 2, 3]


def test_a_match_of_the_whole_window_ends_the_search(index_of):
    text = list(range(1, 80))
    index = index_of(text, text)
    assert found(index, text[:70]) == [(64, 80 + 70)]
    assert found(index, text[:60]) == [(60, 80 + 60), (60, 60)]


def test_what_nothing_follows_is_no_match(index_of):
    assert found(index_of([1, 2, 3]), [1, 2, 3]) == []
    assert found(index_of([1, 2, 3, 4], [1, 2]), [1, 2, 3]) == [(3, 3)]
    assert found(index_of([9, 1], [2, 3, 4]), [1, 2, 3]) == [], "not across the texts"
    assert found(index_of([0, 0, 0, 4]), [0, 0, 0]) == [(3, 3)], "0 is a token"


def test_what_is_joined_is_there_once_in_the_place_of_the_latest():
    parts = [pending([1, 2], [3], [4]).written(), pending([5], [3], [1, 2]).written()]
    assert joined(parts).tolist() == [SEPARATOR] * WINDOW + [4, SEPARATOR, 5, SEPARATOR, 3, SEPARATOR, 1, 2, SEPARATOR]
    assert joined([]).tolist() == [SEPARATOR] * WINDOW


def many(count: int = 2500):
    """Tokens of about two and a half blocks of 1024."""
    return pending_of(list(np.random.default_rng(3).integers(0, 50, count)))


def pending_of(text):
    index = PendingTexts(len(text))
    index.add(np.array(text, np.int32))
    return index


def test_a_file_by_its_bytes(tmp_path):
    tokens = many().written()
    write_segment(tmp_path / "x.texts", tokens, "me")
    data = (tmp_path / "x.texts").read_bytes()
    length = int.from_bytes(data[8:16], "little")
    facts = json.loads(data[16 : 16 + length])["facts"]
    num_slots = 1923 + 1  # three quarters of 64 + 2500 + 1, and one
    assert len(tokens) == 2565 and data[:8] == b"TMTEXTS\n"
    told = {key: facts[key] for key in ("identity", "num_tokens", "num_slots")}
    assert told == {"identity": "me", "num_tokens": 2565, "num_slots": num_slots}
    start = -(-(16 + length) // 64) * 64
    assert len(data) == start + 4 * (3 + 2565 + 2 * num_slots + 2 * 2565)
    assert round(len(data) / 2565) == BYTES_PER_TOKEN
    sums = np.frombuffer(data, np.uint32, 3, start).tolist()
    assert sums == [zlib.crc32(tokens[1024 * i : 1024 * (i + 1)].tobytes()) for i in range(3)]
    assert np.array_equal(np.frombuffer(data, np.int32, 2565, start + 12), tokens)
    assert [path.name for path in tmp_path.iterdir()] == ["x.texts"]


@pytest.mark.parametrize("chunk", [1, 7, 2500])
def test_a_file_does_not_depend_on_how_much_is_indexed_at_a_time(tmp_path, monkeypatch, chunk):
    tokens = many(300).written()
    write_segment(tmp_path / "one", tokens, "me")
    monkeypatch.setattr(module, "CHUNK", chunk)
    write_segment(tmp_path / "other", tokens, "me")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


@pytest.mark.parametrize("place", [0, 1023, 1024, 2047, 2048, 2564])
def test_only_a_damaged_block_is_refused_and_only_when_it_is_looked_at(tmp_path, place):
    file, index = tmp_path / "x.texts", many()
    write_segment(file, index.written(), "me")
    data = bytearray(file.read_bytes())
    begin = data.index(index.written().tobytes())
    data[begin + 4 * place] ^= 1
    file.write_bytes(data)
    segment, block = Segment(file, "me"), place // 1024
    for other in {0, 1, 2} - {block}:
        segment.check(1024 * other, 1024 * (other + 1))
    for first, last in ((place, place + 1), (1024 * block, 1024 * block + 1), (0, 10_000)):
        with pytest.raises(SnapshotError, match=rf"x.texts is damaged: block {block} does not match its checksum"):
            segment.check(first, last)


def test_a_block_is_compared_once(tmp_path, monkeypatch):
    write_segment(tmp_path / "x.texts", many().written(), "me")
    segment, calls, crc32 = Segment(tmp_path / "x.texts", "me"), [], zlib.crc32
    monkeypatch.setattr(module.zlib, "crc32", lambda data: calls.append(len(data)) or crc32(data))
    for _ in range(2):
        segment.check(1000, 1030)
        segment.check(2048, 9999)
    assert calls == [1024, 1024, 517]


def test_files_that_are_no_segments(tmp_path):
    file = tmp_path / "x.texts"
    write_segment(file, pending([1, 2, 3, 4]).written(), "me")
    good = file.read_bytes()
    assert is_segment(file) and not is_segment(tmp_path) and not is_segment(tmp_path / "absent")
    with pytest.raises(SnapshotError, match=r"x.texts is of another identity$"):
        Segment(file, "you")
    file.write_bytes(good[:-4])
    said = rf"x.texts is cut or damaged: size {len(good) - 4}, and its header says {len(good)}$"
    with pytest.raises(SnapshotError, match=said):
        Segment(file, "me")
    file.write_bytes(b"TMTEXTS\n")
    assert is_segment(file)
    file.write_bytes(b"TMTEXTS")
    assert not is_segment(file)
    file.write_bytes(b"another file of some bytes")
    with pytest.raises(SnapshotError, match=r"x.texts holds no texts$"):
        Segment(file, "me")
    file.write_bytes(b"")
    with pytest.raises(SnapshotError, match=r"x.texts is empty, or no file$"):
        Segment(file, "me")
    with pytest.raises(SnapshotError, match=r"is empty, or no file$"):
        Segment(tmp_path, "me")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert not is_segment(tmp_path / "pipe")
    with pytest.raises(SnapshotError, match="is empty, or no file"):
        Segment(tmp_path / "pipe", "me")
