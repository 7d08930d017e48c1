"""Rows on disk: what the safetensors library reads of them, and what their checksum notices."""

import json
import os
import zlib

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tokenmill.cache.header import FORMAT, FRONT, KEY
from tokenmill.cache.snapshot import read_snapshot, serialise_bytes, write_buffers, write_snapshot
from tokenmill.errors import SnapshotError
from tokenmill.memory.atomic_file import seal

FACTS = {"block": "ab", "number": 3}


def rows() -> dict[str, torch.Tensor]:
    return {"1.k": torch.arange(12.0).reshape(3, 4), "0.v": torch.arange(6, dtype=torch.int8).reshape(3, 2)}


def checksum() -> int:
    """Over names, types, shapes and bytes, in the order of the names; zlib.crc32 goes on from what came before."""
    of_bytes = zlib.crc32(bytes(range(6)), zlib.crc32(b"0.v torch.int8 [3, 2]"))
    return zlib.crc32(torch.arange(12.0).numpy().tobytes(), zlib.crc32(b"1.k torch.float32 [3, 4]", of_bytes))


def test_what_was_written_is_read(tmp_path):
    file = tmp_path / "x.kv"
    assert write_snapshot(file, FACTS, rows()) == file.stat().st_size
    facts, found = read_snapshot(file)
    assert {name: facts[name] for name in FACTS} == FACTS
    assert facts["data_checksum"] == checksum() and facts["format"] == FORMAT
    assert found.keys() == rows().keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in rows().items()
    )
    assert load_file(file).keys() == rows().keys()
    assert [path.name for path in tmp_path.iterdir()] == ["x.kv"]


def test_rows_that_are_not_contiguous_are_written_as_they_are_read(tmp_path):
    turned = torch.arange(12.0).reshape(3, 4).t()
    write_snapshot(tmp_path / "x.kv", {}, {"k": turned})
    assert torch.equal(read_snapshot(tmp_path / "x.kv").rows["k"], turned)


def test_what_is_read_is_a_copy(tmp_path):
    file = tmp_path / "x.kv"
    write_snapshot(file, {}, {"k": torch.arange(4096.0)})
    found = read_snapshot(file).rows["k"]
    with file.open("r+b") as opened:
        opened.truncate(100)
    assert torch.equal(found, torch.arange(4096.0))


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_synced_where_that_is_wanted(tmp_path, monkeypatch, sync):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(number) or fsync(number))
    write_snapshot(tmp_path / "x.kv", {}, rows(), sync)
    assert bool(synced) == sync
    synced.clear()
    write_snapshot(tmp_path / "x.kv", {}, rows())
    assert synced
    synced.clear()
    write_buffers(tmp_path / "y.kv", [b"any"])
    assert not synced and (tmp_path / "y.kv").read_bytes() == b"any"


def test_what_cannot_be_written_is_said(tmp_path):
    path = tmp_path / "nowhere" / "x.kv"
    for write in (lambda: write_snapshot(path, {}, rows()), lambda: write_buffers(path, [b"any"])):
        with pytest.raises(SnapshotError, match=r"x.kv cannot be written: No such file or directory$"):
            write()
    with pytest.raises(SnapshotError, match=r"x.kv cannot be written: .*not JSON serializable"):
        write_snapshot(tmp_path / "x.kv", {"a": object()}, rows())
    assert list(tmp_path.iterdir()) == []


def joined(buffers) -> bytes:
    return b"".join(memoryview(each).cast("B") if not isinstance(each, bytes) else each for each in buffers)


def test_buffers_make_a_file_of_one_tensor(tmp_path):
    parts = [torch.arange(5, dtype=torch.uint8).numpy(), torch.arange(6, dtype=torch.uint8).reshape(2, 3).numpy()]
    buffers = serialise_bytes(FACTS, "rows", parts)
    assert buffers[1] is parts[0] and buffers[2] is parts[1], "nothing is copied"
    head = buffers[0]
    assert len(head) % 8 == 0 and int.from_bytes(head[:8], "little") == len(head) - 8
    assert head[8:].startswith(FRONT + json.dumps('"block": "ab", "number": 3').encode()[1:-1])
    entry = json.loads(head[8:])["rows"]
    assert entry == {"dtype": "U8", "shape": [11], "data_offsets": [0, 11]}
    file = tmp_path / "x.kv"
    write_buffers(file, buffers)
    assert file.read_bytes() == joined(buffers)
    facts, found = read_snapshot(file)
    assert {name: facts[name] for name in FACTS} == FACTS and list(found) == ["rows"]
    assert found["rows"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    with safe_open(file, framework="pt") as opened:
        assert opened.metadata().keys() == {KEY}


def test_every_bit_of_the_rows_counts(tmp_path):
    file = tmp_path / "x.kv"
    size = write_snapshot(file, FACTS, rows())
    data = file.read_bytes()
    for at in range(size - 54, size):  # 48 bytes of numbers, and 6
        file.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(SnapshotError, match=r"x.kv is damaged: its data does not match data_checksum$"):
            read_snapshot(file)


@pytest.mark.parametrize(
    "other",
    [
        {"1.k": rows()["1.k"].reshape(4, 3), "0.v": rows()["0.v"]},
        {"1.k": rows()["1.k"].view(torch.int32), "0.v": rows()["0.v"]},
        {"2.k": rows()["1.k"], "0.v": rows()["0.v"]},
        {"1.k": rows()["1.k"]},
    ],
    ids=["shape", "type", "name", "missing"],
)
def test_names_types_and_shapes_count(tmp_path, other):
    file = tmp_path / "x.kv"
    save_file(other, file, {KEY: seal({"data_checksum": checksum()}, FORMAT)})
    with pytest.raises(SnapshotError, match="does not match data_checksum"):
        read_snapshot(file)
    save_file(rows(), file, {KEY: seal({"data_checksum": checksum()}, FORMAT)})
    assert read_snapshot(file).rows.keys() == rows().keys()


def test_a_file_that_ends_early_is_damaged(tmp_path):
    file = tmp_path / "x.kv"
    write_snapshot(file, {}, rows())
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match=r"x.kv is no saved cache, or is damaged"):
        read_snapshot(file)
