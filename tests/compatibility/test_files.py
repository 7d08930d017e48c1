"""Files of earlier versions are opened, and give the texts that were written beside them. make_files.py has made them.

The texts hang on no rounding, so that they are the same on every machine.
"""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from tests.compatibility.make_files import ASKED, HOW, MORE, PROMPT
from tokenmill import load
from tokenmill.kernels import native_library
from tokenmill.receipts.file import read_receipts

VERSIONS = sorted(path for path in Path(__file__).parent.glob("v*") if path.is_dir())
NATIVE = pytest.param(
    "native", marks=pytest.mark.skipif(not native_library.is_usable(), reason="program native is not built here")
)
PROGRAMS = [NATIVE, "eager"]


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def kept(request, tmp_path):
    """A copy of a version's files, in which nothing can be spoilt."""
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


@pytest.fixture
def texts(kept):
    return json.loads((kept / "texts.json").read_text())


def said(engine):
    return {name: list(engine.generate(PROMPT, **asked).tokens) for name, asked in ASKED.items()}


def test_there_are_files_of_every_version_and_they_are_small():
    assert [path.name for path in VERSIONS][:1] == ["v0.1"]
    for path in VERSIONS:
        assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 200_000


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_saved_session_goes_on(kept, texts, program):
    engine = load(kept / "model", program=program, **HOW)
    with engine.open_session(kept / "session.kv") as session:
        assert session.tokens[: len(PROMPT)] == tuple(PROMPT) and session.notes == {"title": "kept"}
        assert list(session.generate(MORE, max_new_tokens=8).tokens) == texts["session"]


@pytest.mark.parametrize("program", [NATIVE])
def test_a_packed_model_is_opened(kept, texts, program):
    path = kept / "packed.tm"
    path.write_bytes(gzip.decompress((kept / "packed.tm.gz").read_bytes()))
    engine = load(path, max_length=64, threads=1)
    assert engine.program_name == program and said(engine) == {name: texts[name] for name in ASKED}


@pytest.mark.parametrize("program", PROGRAMS)
def test_stored_prefix_blocks_are_read_or_left_alone(kept, texts, program):
    """They are read by the build that wrote them alone; any other computes the same text and leaves them."""
    before = {path: path.read_bytes() for path in (kept / "blocks").rglob("*.kv")}
    engine = load(kept / "model", program=program, prefix_dir=kept / "blocks", block_size=4, **HOW)
    assert said(engine) == {name: texts[name] for name in ASKED}
    engine.close()
    assert before and all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("program", PROGRAMS)
def test_receipts_are_checked(kept, texts, program):
    engine = load(kept / "model", program=program, **HOW)
    entries = list(read_receipts(kept / "receipts.jsonl"))
    assert [list(entry.receipt.tokens) for entry in entries] == [texts[name] for name in (*ASKED, "session")]
    for entry in entries:
        found = engine.verify(entry.receipt)
        assert not entry.receipt.is_changed and not found.findings
        assert found.verdict == ("verified" if program == "native" else "consistent")
