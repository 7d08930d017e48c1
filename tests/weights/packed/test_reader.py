"""Packed models by their bytes: a file that is made here, and each field of its header wrong in turn."""

import re
import threading
import zlib
from pathlib import Path

import pytest

from tokenmill.errors import CheckpointError, PackedModelError
from tokenmill.memory.atomic_file import seal
from tokenmill.weights.packed import reader as module
from tokenmill.weights.packed.reader import (
    BEGIN,
    FORMAT,
    MAGIC,
    PackedReader,
    begin_file,
    is_packed_model,
    read_header,
    read_tokenizer,
)
from tokenmill.weights.packed.verified import is_verified, record_of

WEIGHTS = bytes(range(100))
TOKENIZER = b"a tokenizer"
REMEDY = "; make it again with `tokenmill pack`"
FACTS = {
    "program": "native",
    "dtype": "float32",
    "scheme": "q8",
    "source": "/models/x",
    "rounded": "",
    "copy": None,
    "config": {},
    "fingerprint": {},
    "weights": {},
    "shapes": {"a": [2, 3], "b": []},
    "tokenizer_bytes": len(TOKENIZER),
    "tokenizer_checksum": zlib.crc32(TOKENIZER),
    "payload_bytes": 100,
    "part_bytes": 40,
    "checksums": [zlib.crc32(WEIGHTS[at : at + 40]) for at in (0, 40, 80)],
}


def written(path, payload=WEIGHTS, text=TOKENIZER, **changes):
    """The file, with other facts; ... leaves one out."""
    facts = {name: value for name, value in (FACTS | changes).items() if value is not ...}
    header = seal(facts, FORMAT).encode()
    front = begin_file(BEGIN + len(payload), len(header))
    path.unlink(missing_ok=True)  # a thread may still read the file that has this name, and may not find it cut
    with path.open("wb") as out:
        out.write(front)
        out.seek(BEGIN)
        out.write(payload + header + text)
    return path


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.packed"


def refused(file, **changes) -> str:
    with pytest.raises(PackedModelError) as raised:
        read_header(written(file, **changes))
    return str(raised.value).removeprefix(f"{file} ")


def test_the_front_by_hand():
    assert begin_file(0x0102, 3) == b"TMIMAGE\n" + bytes([2, 1] + [0] * 6 + [3] + [0] * 7)
    assert BEGIN == 2 << 20, "so that the weights can be mapped in huge pages"


def test_what_a_file_says(file):
    facts, end = read_header(written(file))
    assert {name: facts[name] for name in FACTS} == FACTS
    assert end == file.stat().st_size - len(TOKENIZER)
    assert read_tokenizer(file, facts, end) == TOKENIZER


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({name: 3}, f"{name} = 3 is not allowed: a text")
            for name in ("program", "dtype", "scheme", "source", "rounded")
        ),
        *(
            ({name: ...}, f"has no '{name}', which is required")
            for name in ("program", "config", "shapes", "part_bytes")
        ),
        *(
            ({name: [1]}, f"{name} must be an object with named values, not [1]")
            for name in ("config", "fingerprint", "weights", "shapes")
        ),
        ({"tokenizer_bytes": -1}, "tokenizer_bytes = -1 is not allowed: a whole number from 0"),
        ({"tokenizer_checksum": -1}, "tokenizer_checksum = -1 is not allowed: a whole number from 0"),
        ({"tokenizer_checksum": (1 << 48) + 1}, f"tokenizer_checksum = {(1 << 48) + 1} is not allowed"),
        ({"payload_bytes": 0}, "payload_bytes = 0 is not allowed: a whole number from 1 to"),
        ({"payload_bytes": 100.0}, "payload_bytes = 100.0 is not allowed"),
        ({"part_bytes": 0}, "part_bytes = 0 is not allowed: a whole number from 1 to"),
        ({"shapes": {"a": [2, -1]}}, "a = [2, -1] is not allowed: a shape"),
        ({"shapes": {"a": [2.0]}}, "a = [2.0] is not allowed: a list of int values"),
        ({"checksums": FACTS["checksums"][:2]}, "is not allowed: 3 of them"),
        ({"checksums": [*FACTS["checksums"], 0]}, "is not allowed: 3 of them"),
        ({"checksums": ["x"] * 3}, "is not allowed: a list of int values"),
    ],
    ids=str,
)
def test_facts_that_cannot_be(file, changes, message):
    said = refused(file, **changes)
    assert said.startswith("is damaged") and message in said


def test_facts_at_their_borders(file):
    facts, _ = read_header(written(file, shapes={"a": [0, 5]}, tokenizer_checksum=1 << 48))
    assert facts["shapes"] == {"a": [0, 5]}
    one = {"payload_bytes": 1, "part_bytes": 1, "checksums": [0], "tokenizer_bytes": 0}
    assert read_header(written(file, payload=b"x", text=b"", **one))[0]["payload_bytes"] == 1
    exact = {"part_bytes": 50, "checksums": [0, 0]}
    assert read_header(written(file, **exact))[0]["checksums"] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "at"),
    [({"payload_bytes": 99}, 0), ({"tokenizer_bytes": 10}, 2), ({"tokenizer_bytes": 12}, 2), ({"text": b""}, 2)],
    ids=str,
)
def test_sizes_that_do_not_add_up(file, changes, at):
    said = refused(file, **changes)
    assert said.startswith("is cut or damaged: sizes (") and said.endswith(REMEDY)
    found, wanted = (re.findall(r"\d+", part) for part in said.split(", and its header says "))
    assert [one != other for one, other in zip(found, wanted, strict=True)] == [i == at for i in range(3)]


def test_what_is_no_packed_model(file, tmp_path):
    file.write_bytes(b"")
    for data in (b"", b"TMIMAGE", b"GGUF" + bytes(100)):
        file.write_bytes(data)
        assert not is_packed_model(file)
        with pytest.raises(PackedModelError, match=r"x.packed is no packed model$"):
            read_header(file)
    file.write_bytes(MAGIC)
    assert is_packed_model(file)
    with pytest.raises(PackedModelError, match="is cut or damaged: its header cannot be read"):
        read_header(file)
    assert not is_packed_model(tmp_path) and not is_packed_model(tmp_path / "absent")
    with pytest.raises(CheckpointError, match="absent cannot be read: No such file or directory"):
        read_header(tmp_path / "absent")


def test_a_header_of_another_version(file):
    header = seal(FACTS, FORMAT + 1).encode()
    with written(file).open("r+b") as out:
        out.write(begin_file(BEGIN + 100, len(header)))
        out.seek(BEGIN + 100)
        out.write(header + TOKENIZER)
    with pytest.raises(PackedModelError) as raised:
        read_header(file)
    assert str(raised.value) == f"{file} has format {FORMAT + 1}, and this tokenmill reads {FORMAT}{REMEDY}"


def test_the_weights_are_mapped_and_verified(file):
    reader = PackedReader(written(file))
    assert (reader.path, reader.tokenizer_text, reader.facts["payload_bytes"]) == (file, TOKENIZER, 100)
    assert bytes(reader.wait()) == WEIGHTS
    assert reader.header_end == file.stat().st_size - len(TOKENIZER)


@pytest.mark.parametrize(("at", "said"), [(0, "0 to 40"), (39, "0 to 40"), (40, "40 to 80"), (99, "80 to 100")])
def test_the_part_that_is_damaged_is_named(file, at, said):
    weights = bytearray(WEIGHTS)
    weights[at] ^= 1
    reader = PackedReader(written(file, payload=bytes(weights)))
    message = rf"x.packed is damaged: bytes {said} of its weights do not match their checksum; make it again"
    for _ in range(2):
        with pytest.raises(PackedModelError, match=message):
            reader.wait()
    with pytest.raises(PackedModelError, match=message):
        PackedReader(file).wait()


def test_checksums_are_computed_once_unless_that_is_asked_for(file, monkeypatch):
    computed, real = [], zlib.crc32
    monkeypatch.setattr(module.zlib, "crc32", lambda data, *rest: computed.append(len(data)) or real(data, *rest))

    def parts(**how) -> list[int]:
        computed.clear()
        assert bytes(PackedReader(file, **how).wait()) == WEIGHTS
        return [size for size in computed if size in (40, 20)]

    written(file)
    assert parts() == [40, 40, 20]
    assert parts() == []
    assert parts(again=True) == [40, 40, 20]


def test_a_copy_says_its_name(file):
    assert bytes(PackedReader(written(file, copy="x.packed"), is_copy=True).wait()) == WEIGHTS
    assert bytes(PackedReader(written(file, copy="y.packed")).wait()) == WEIGHTS
    for name in ("y.packed", None):
        with pytest.raises(PackedModelError, match=rf"x.packed is another file under this name: its copy is {name!r}"):
            PackedReader(written(file, copy=name), is_copy=True)


@pytest.fixture
def go_on(monkeypatch):
    """Weights are verified when this is set."""
    event, real = threading.Event(), module.is_verified
    monkeypatch.setattr(module, "is_verified", lambda *given: event.wait(60) and real(*given))
    return event


def test_a_file_that_is_deleted_is_read_to_its_end(file, go_on):
    reader = PackedReader(written(file))
    file.unlink()
    go_on.set()
    assert bytes(reader.wait()) == WEIGHTS


def test_the_directory_and_the_cache_may_change_while_it_is_verified(file, folder, go_on, monkeypatch):
    """What is remembered then is of the file that was opened, and where the next start looks for it."""
    monkeypatch.chdir(written(file).parent)
    reader = PackedReader(Path(file.name))
    (file.parent / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    monkeypatch.setenv("TOKENMILL_CACHE", "other")
    go_on.set()
    assert bytes(reader.wait()) == WEIGHTS
    assert not list(Path().iterdir())
    monkeypatch.setenv("TOKENMILL_CACHE", str(folder.parent))
    with file.open("rb") as opened:
        assert is_verified(record_of(file), opened.fileno())
