"""The writer of packed models: what was handed out is in the file, and what is not finished leaves nothing."""

import os
import zlib
from contextlib import closing

import pytest
import torch

from tests.gguf_files import vocabulary
from tokenmill.errors import CheckpointError
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.packed import writer as module
from tokenmill.weights.packed.reader import BEGIN, MAGIC, PackedReader, read_header
from tokenmill.weights.packed.writer import PackedWriter

FACTS = {"program": "native", "dtype": "float32", "scheme": "q8", "source": "/x", "rounded": "", "copy": None}
FACTS |= {"config": {}, "fingerprint": {}, "weights": {}, "shapes": {}}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """So that a few pieces are several parts."""
    monkeypatch.setattr(module, "PART", 128)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "x.packed"


def fill(writer, *counts: int) -> bytes:
    """Pieces of so many bytes, and all that is in the file then: each is padded to 64."""
    wanted = b""
    for number, count in enumerate(counts, 1):
        assert writer.used == len(wanted)
        piece = writer.zeros((count,), torch.uint8)
        assert not piece.any()
        piece.copy_(torch.arange(count) % 100 + number)
        wanted += bytes(piece.tolist()) + bytes(-count % 64)
    assert writer.used == len(wanted)
    return wanted


@pytest.mark.parametrize(
    "counts",
    [(64,), (1,), (128,), (129,), (100, 28), (63, 1, 64), (300, 7, 640, 64), (64, 640, 300), (1280,), (64,) * 20],
    ids=str,
)
def test_what_was_handed_out_is_in_the_file(file, counts):
    with closing(PackedWriter(file)) as writer:
        wanted = fill(writer, *counts)
        assert bytes(writer.bytes.tolist()) == wanted
        size = writer.finish(FACTS, None)
    assert size == file.stat().st_size
    facts, _ = read_header(file)
    assert (facts["payload_bytes"], facts["part_bytes"]) == (len(wanted), 128)
    assert facts["checksums"] == [zlib.crc32(wanted[at : at + 128]) for at in range(0, len(wanted), 128)]
    assert (facts["tokenizer"], facts["tokenizer_bytes"], facts["tokenizer_checksum"]) == (None, 0, 0)
    assert bytes(PackedReader(file, again=True).wait()) == wanted


def test_a_file_may_be_finished_without_its_mapping(file):
    with closing(PackedWriter(file)) as writer:
        wanted = fill(writer, 200, 10)
        writer.finish(FACTS, None)
    assert bytes(PackedReader(file, again=True).wait()) == wanted


def test_pieces_have_their_shape_and_type(file):
    with closing(PackedWriter(file)) as writer:
        piece = writer.zeros((3, 5), torch.float32)
        assert (piece.shape, piece.dtype, writer.used) == ((3, 5), torch.float32, 64)
        piece.fill_(1.5)
        writer.zeros((2,), torch.bfloat16).fill_(2.0)
        assert writer.used == 128
        found = writer.bytes
        assert found[:60].view(torch.float32).unique().tolist() == [1.5]
        assert found[64:68].view(torch.bfloat16).tolist() == [2.0, 2.0]


def test_the_file_is_as_large_as_it_will_be(file):
    with closing(PackedWriter(file, num_bytes=1000)) as writer:
        (temporary,) = file.parent.glob(".x.packed.*")
        assert temporary.stat().st_size == BEGIN + 1000 and temporary.read_bytes()[:8] == MAGIC
        wanted = fill(writer, 64)
        writer.finish(FACTS, None)
    assert read_header(file)[0]["payload_bytes"] == len(wanted)


def test_what_is_not_finished_leaves_nothing(file):
    with closing(PackedWriter(file)) as writer:
        fill(writer, 300)
        assert not writer.failed
    assert list(file.parent.iterdir()) == []
    file.write_bytes(b"before")
    with pytest.raises(RuntimeError), closing(PackedWriter(file)) as writer:
        fill(writer, 300)
        raise RuntimeError
    assert file.read_bytes() == b"before" and len(list(file.parent.iterdir())) == 1


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_synced_where_that_is_wanted(file, monkeypatch, sync):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(number) or real(number))
    with closing(PackedWriter(file, sync)) as writer:
        fill(writer, 300)
        writer.finish(FACTS, None)
    assert len(synced) == sync


def test_the_tokenizer_lies_at_the_end(file):
    tokenizer = tokenizer_from_gguf(vocabulary())
    tokenizer = Tokenizer(
        tokenizer.backend,
        bos_token_id=0,
        eos_token_ids=[0, 5],
        chat_template="x",
        named_templates={"tool_use": "y"},
        special_texts={"bos_token": "<|endoftext|>"},
        suppressed_ids=[7],
    )
    with closing(PackedWriter(file)) as writer:
        fill(writer, 64)
        writer.finish(FACTS, tokenizer)
    facts, end = read_header(file)
    text = tokenizer.backend.to_str().encode()
    assert file.read_bytes()[end:] == text
    assert (facts["tokenizer_bytes"], facts["tokenizer_checksum"]) == (len(text), zlib.crc32(text))
    assert facts["tokenizer"] == {
        "bos_token_id": 0,
        "eos_token_ids": [0, 5],
        "chat_template": "x",
        "named_templates": {"tool_use": "y"},
        "special_texts": {"bos_token": "<|endoftext|>"},
        "suppressed_ids": [7],
        "rules": None,
    }


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_disk_that_is_full_is_said(file, monkeypatch, left):
    done, real = [], os.pwrite

    def full(*given):
        if len(done) >= left:
            raise OSError(28, "No space left on device")
        done.append(given)
        return real(*given)

    monkeypatch.setattr(os, "pwrite", full)
    with closing(PackedWriter(file)) as writer:
        with pytest.raises(CheckpointError, match=r"x.packed cannot be written: No space left on device"):
            fill(writer, 1000)
            writer.finish(FACTS, None)
        assert writer.failed
    assert list(file.parent.iterdir()) == []


def test_a_write_may_take_a_part_only(file, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, data, at: real(number, data[:7], at))
    with closing(PackedWriter(file)) as writer:
        wanted = fill(writer, 200)
        writer.finish(FACTS, None)
    assert bytes(PackedReader(file, again=True).wait()) == wanted


def test_what_is_no_file_is_not_replaced(file):
    file.mkdir()
    with pytest.raises(CheckpointError, match=r"x.packed cannot be written: it is no regular file"):
        PackedWriter(file)
    assert [path.name for path in file.parent.iterdir()] == ["x.packed"]
