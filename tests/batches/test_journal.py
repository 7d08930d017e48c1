"""The journal: whatever is cut or damaged, what is whole is found again, and nothing else is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.batches.conftest import write_lines
from tokenmill.batches.journal import Journal
from tokenmill.batches.scan import scan
from tokenmill.errors import RequestError
from tokenmill.memory.file_lock import locked_file

FACTS = {"model": {"weights": "abc"}, "task": {"seed": None}}


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "in.jsonl"
    return scan(write_lines(path, [{"text": f"w{number}"} for number in range(8)]))


def filled(path, index, count=8):
    with locked_file(path) as file:
        journal = Journal(path, file, index, FACTS)
        for number in range(count):
            journal.append(int(index.places[number]), int(index.digests[number]), {"answer": f"ü\n{number}" * number})
        journal.close()
    return path.read_bytes()


def read(path, index, facts=FACTS):
    """The rows that have an answer, each checked; the number of damaged records."""
    with locked_file(path) as file:
        journal = Journal(path, file, index, facts)
        found = [number for number in range(8) if journal.offsets[index.places[number]] >= 0]
        for number in found:
            assert journal.read(int(index.places[number])) == {"answer": f"ü\n{number}" * number}
        journal.close()
        return found, journal.num_damaged


def test_cut_anywhere(index, tmp_path):
    path = tmp_path / "a.journal"
    data = filled(path, index)
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    for size in {*range(0, len(data), 7), *ends, *(end + 1 for end in ends), ends[0] - 1}:
        path.write_bytes(data[:size])
        found, num_damaged = read(path, index)
        assert found == list(range(max(sum(end < size for end in ends) - 1, 0))) and not num_damaged
        assert path.read_bytes() == data[: max(end + 1 for end in ends if end < max(size, ends[0] + 1))]
        assert filled(path, index)  # which goes on
        assert read(path, index) == (list(range(8)), 0)


@settings(max_examples=30)
@given(st.data())
def test_damaged_anywhere(index, tmp_path_factory, data):
    path = tmp_path_factory.mktemp("journal") / "a.journal"
    whole = filled(path, index)
    start = whole.index(b"\n") + 1
    place = data.draw(st.integers(start, len(whole) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != whole[place]))
    path.write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
    found, _ = read(path, index)
    touched = whole[start:place].count(b"\n")
    assert set(range(8)) - set(found) <= {touched, touched + 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Dear Sir\n", "cut or damaged"),
        (b"{}\n", "cut or damaged"),
        (b"no line break", "cut or damaged"),
    ],
)
def test_what_is_no_journal_is_left_alone(index, tmp_path, content, message):
    path = tmp_path / "a.journal"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=f"{message}.*delete it to begin anew"):
        read(path, index)
    assert path.read_bytes() == content


def test_of_other_settings(index, tmp_path):
    filled(path := tmp_path / "a.journal", index)
    with pytest.raises(RequestError, match='weights was "abc", now "abd"; seed was null, now 1'):
        read(path, index, {"model": {"weights": "abd"}, "task": {"seed": 1}})
