"""Packed copies in the cache folder: the same bits, made once, never stale, never in the way."""

import errno
import fcntl
import os
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.marks import needs_native
from tests.mtp_models import save_with_mtp
from tests.tiny_models import save
from tests.weights.packed.conftest import LONG, replace, there
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.loader import copies, packed_copy
from tokenmill.loader.load_model import resolve_checkpoint
from tokenmill.loader.pack import save_packed_model
from tokenmill.memory import disk_limit
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.packed import reader, writer
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import BEGIN, begin_file, read_header

pytestmark = needs_native

FIELDS = ("is no packed model", "its header", "of its weights do not match", "its tokenizer does not match", "sizes (")


@pytest.fixture
def opened(monkeypatch):
    """The kinds of checkpoints that models were loaded from."""
    kinds, real = [], packed_copy.load_model

    def load_model(checkpoint, *rest, **named):
        kinds.append("copy" if isinstance(checkpoint, PackedCheckpoint) else "model")
        return real(checkpoint, *rest, **named)

    monkeypatch.setattr(packed_copy, "load_model", load_model)
    return kinds


def test_the_second_load_maps_what_the_first_kept(llama, folder, opened):
    first = load(llama)
    assert len(there(folder)) == 1 and there(folder)[0].startswith("llama-")
    second = load(llama)
    assert opened == ["model", "copy"]
    assert torch.equal(first.logits(LONG), second.logits(LONG))
    assert first.config == second.config
    assert first.fingerprint == second.fingerprint
    assert first.memory == second.memory


def test_the_layer_that_predicts_further_tokens_is_read_from_the_model(models, folder, opened):
    """The copy has the other layers."""
    path, settings = save_with_mtp("qwen3_5_text", models), {"speculate": "draft_model", "draft_model": "mtp"}
    first, second = load(path, **settings), load(path, **settings)
    assert opened == ["model", "copy"] and len(there(folder)) == 1
    assert first.generate(LONG, max_new_tokens=9).tokens == second.generate(LONG, max_new_tokens=9).tokens
    ours, theirs = (each.core.speculation.stats for each in (first, second))
    assert ours.num_drafted == theirs.num_drafted > 0 and ours.num_accepted == theirs.num_accepted


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss", "kimi_linear", "olmo_hybrid", "deepseek_v3"])
@pytest.mark.parametrize("published", [True, False])
def test_a_copy_has_the_names_that_the_files_have(name, published, tmp_path, folder, opened):
    """Those that transformers writes now, too."""
    path = save(name, tmp_path, **({} if published else {"save_original_format": False}))
    first, second = (load(path, max_length=64) for _ in range(2))
    assert opened == ["model", "copy"]
    assert torch.equal(first.logits(LONG), second.logits(LONG))


def test_a_copy_of_the_format_before_is_made_again(llama, folder, opened, monkeypatch, caplog):
    with monkeypatch.context() as before:
        before.setattr(writer, "FORMAT", reader.FORMAT - 1)
        load(llama)
    load(llama)
    load(llama)
    assert opened == ["model", "model", "copy"] and f"has format {reader.FORMAT - 1}" in caplog.text


def test_a_packed_model_and_a_small_one_have_no_copy(llama, folder, tmp_path, monkeypatch):
    save_packed_model(open_checkpoint(llama), EngineConfig(program="native"), tmp_path / "x.packed", lambda *_: None)
    load(tmp_path / "x.packed")
    size = resolve_checkpoint(open_checkpoint(llama), EngineConfig()).weight_bytes
    for smallest, count in ((size + 1, 0), (size, 1)):
        monkeypatch.setattr(packed_copy, "SMALLEST", smallest)
        load(llama)
        assert len(there(folder)) == count


@pytest.mark.parametrize("settings", [{"program": "native"}, {"dtype": "float32"}, {"scheme": "q8"}])
def test_settings_that_resolve_to_the_same_share_a_copy(llama, folder, opened, settings):
    given = {"dtype": "float32", "scheme": "q8", "program": "auto"} if "scheme" in settings else {}
    for each in (given, given | settings, given | {"program": "native"}, given):
        load(llama, **each)
    assert opened == ["model", "copy", "copy", "copy"]
    assert len(there(folder)) == 1


def test_settings_that_pack_otherwise_have_copies_of_their_own(llama, folder, opened):
    """Also where the copy that "auto" may stand for, and that was used last, is another one."""
    kinds = ({}, {"scheme": "q8"}, {"scheme": "q4"}, {"dtype": "bfloat16"})
    want = [load(llama, **settings).logits(LONG) for settings in kinds]
    for _ in range(2):
        for settings, logits in zip(kinds, want, strict=True):
            assert torch.equal(load(llama, **settings).logits(LONG), logits)
    assert opened == ["model"] * 4 + ["copy"] * 8
    assert len(there(folder)) == 4


@pytest.mark.parametrize("settings", [{"kernel": "gather"}, {"program": "eager"}, {"packed_cache": False}])
def test_who_cannot_use_a_copy_reads_the_model(llama, folder, opened, settings):
    load(llama)
    load(llama, **settings)
    assert opened == ["model", "model"]
    assert len(there(folder)) == 1


def test_other_settings_share_the_copy(llama, folder, opened):
    load(llama)
    for settings in ({"cache_format": "int8"}, {"max_length": 64}, {"max_sequences": 4}, {"speculate": "suffix"}):
        load(llama, **settings)
    assert opened == ["model"] + ["copy"] * 4
    assert len(there(folder)) == 1


@pytest.mark.parametrize("which", ["q8", "the same", "another"])
def test_a_draft_model_has_a_copy_of_its_own(which, llama, tmp_path, folder, opened):
    name = {"q8": "q8", "the same": str(llama), "another": str(save("qwen2", tmp_path / "other"))}[which]
    texts = []
    for draft in (None, name, name):
        settings = {} if draft is None else {"draft_model": draft, "speculate": "draft_model"}
        engine = load(llama, max_length=128, **settings)
        texts.append(engine.generate([LONG], max_new_tokens=20, ignore_eos=True)[0].tokens)
    assert texts[0] == texts[1] == texts[2]
    shared = which == "the same"
    assert opened == ["model", "copy", "copy" if shared else "model", "copy", "copy"]
    assert len(there(folder)) == 2 - shared


def test_a_draft_model_without_copies(llama, folder, opened):
    load(llama, draft_model="q8", speculate="draft_model", max_length=128, packed_cache=False)
    assert opened == ["model", "model"] and not folder.exists()


def test_a_damaged_copy_of_a_draft_model_is_made_again(llama, folder, opened, caplog):
    load(llama)
    (own,) = there(folder)
    drafted = {"draft_model": "q8", "speculate": "draft_model", "max_length": 128}
    load(llama, **drafted)
    (path,) = (path for path in folder.glob("*.packed") if path.name != own)
    data = bytearray(path.read_bytes())
    data[BEGIN] ^= 1
    replace(path, data)
    opened.clear()
    load(llama, **drafted)
    assert opened == ["copy", "copy", "model"]
    assert caplog.text.count("another copy is made") == 1


def another(model, path):
    """A model of the same sizes with other weights."""
    tensors = load_file(model / "model.safetensors")
    other = {name: tensor.flip(0).contiguous() for name, tensor in tensors.items()}
    save_file(other, shutil.copytree(model, path) / "model.safetensors", {"format": "pt"})
    return path


def test_a_model_that_was_replaced_is_read_again(llama, folder, opened, tmp_path):
    load(llama)
    other = another(llama, tmp_path / "other")
    want = load(other).logits(LONG)
    file = llama / "model.safetensors"
    shutil.copyfile(other / "model.safetensors", file)
    assert torch.equal(load(llama).logits(LONG), want)
    assert opened == ["model"] * 3
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 64
    file.write_bytes(data)  # in place, where samples may miss it, and the time of the change tells
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    load(llama)
    assert opened == ["model"] * 4


def test_files_that_change_their_names_are_another_model(llama, folder, opened, tmp_path):
    """Contents, sizes and times stay: what the directory's files are called decides which of them is read."""
    path = shutil.copytree(llama, tmp_path / "model")
    other = another(llama, tmp_path / "other")
    shutil.copyfile(other / "model.safetensors", path / "tuned.safetensors")
    before = load(path).logits(LONG)
    (path / "model.safetensors").rename(path / "base.safetensors")
    (path / "tuned.safetensors").rename(path / "model.safetensors")
    assert torch.equal(load(path).logits(LONG), load(other).logits(LONG))
    assert not torch.equal(load(path).logits(LONG), before)


@pytest.mark.slow
@pytest.mark.parametrize("num_places", [4, pytest.param(64, marks=pytest.mark.long)])
def test_copies_damaged_anywhere_are_refused_and_made_again(num_places, llama, folder, opened, caplog):
    """At so many places of each part of the file: its front, the weights, and header with tokenizer."""
    want = load(llama).logits(LONG)
    (path,) = folder.glob("*.packed")
    data = path.read_bytes()
    facts, _ = read_header(path)
    front, weights = range(len(begin_file(0, 0))), range(BEGIN, BEGIN + facts["payload_bytes"])
    numbers = random.Random(1)
    places = [
        *numbers.choices(front, k=num_places + 8),
        *numbers.sample(weights, num_places),
        *numbers.sample(range(weights.stop, len(data)), num_places),
    ]
    for at in places:
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        replace(path, flipped)
        caplog.clear()
        opened.clear()
        assert torch.equal(load(llama).logits(LONG), want)
        assert opened[-1] == "model"
        (said,) = (text for text in caplog.messages if "another copy is made" in text)
        assert any(field in said for field in FIELDS)
        assert path.read_bytes() == data
        load(llama)
        assert opened[-1] == "copy"


def test_copies_that_were_cut_are_made_again(llama, folder):
    want = load(llama).logits(LONG)
    (path,) = folder.glob("*.packed")
    data = path.read_bytes()
    for size in (0, 7, 100, len(data) // 2, len(data) - 1):
        replace(path, data[:size])
        assert torch.equal(load(llama).logits(LONG), want)
        assert path.read_bytes() == data


def test_checksums_are_computed_once_until_the_file_changes(llama, folder, monkeypatch):
    load(llama)
    computed, real = [], reader.zlib.crc32
    monkeypatch.setattr(reader.zlib, "crc32", lambda *given: computed.append(1) or real(*given))

    def sums():
        computed.clear()
        copies.start_reading(llama, EngineConfig(model=str(llama))).wait()
        return len(computed)

    header = sums() and sums()
    assert sums() == header
    (path,) = folder.glob("*.packed")
    replace(path, path.read_bytes())
    assert sums() > header


def test_a_copy_without_room_is_not_kept(llama, folder, caplog, monkeypatch):
    monkeypatch.setattr(disk_limit.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    load(llama)
    assert there(folder) == []
    assert "no packed copy of llama is kept" in caplog.text and "TOKENMILL_CACHE" in caplog.text


def test_the_copy_that_was_not_used_for_longest_goes_first(llama, folder, monkeypatch):
    for scheme in ("q8", "q4"):
        load(llama, scheme=scheme)
    for age, scheme in ((100, "q4"), (900, "q8")):
        (path,) = (copy.path for copy in copies.copies() if copy.kind.endswith(scheme))
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    size = sum(copy.num_bytes for copy in copies.copies())
    monkeypatch.setattr(packed_copy, "room_for_copy", lambda num_bytes, _: copies.room_for_copy(num_bytes, size))
    load(llama, dtype="bfloat16", scheme="q8")
    assert sorted(copy.kind for copy in copies.copies()) == ["native bfloat16 q8", "native float32 q4"]


def test_a_folder_that_cannot_be_written_is_said_and_no_more(llama, folder, caplog):
    folder.parent.write_text("a file")
    assert load(llama).logits(LONG) is not None
    assert "will not start faster" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 7, -1])
def test_a_disk_that_fills_while_the_copy_is_written(llama, folder, opened, caplog, monkeypatch, at):
    """At any write, the header's too (-1): the weights are packed into memory, which is said once."""
    monkeypatch.setattr(writer, "PART", 1000)
    write, done = os.pwrite, []
    monkeypatch.setattr(os, "pwrite", lambda *given: done.append(given) or write(*given))
    want = load(llama).logits(LONG)
    last = len(done) + at if at < 0 else at
    shutil.rmtree(folder)
    done.clear()

    def full(*given):
        if len(done) == last:
            raise OSError(errno.ENOSPC, "No space left on device")
        done.append(given)
        return write(*given)

    monkeypatch.setattr(os, "pwrite", full)
    assert torch.equal(load(llama).logits(LONG), want)
    assert caplog.text.count("will not start faster") == 1 and "No space left" in caplog.text
    assert opened == ["model"] * (2 if at < 0 else 3)
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == []


def test_files_that_are_replaced_while_they_are_read_have_no_copy(llama, folder, monkeypatch):
    real, found = packed_copy.copy_names, []

    def changing(*given):
        found.append({dtype: f"{len(found)}{name}" for dtype, name in real(*given).items()})
        return found[-1]

    monkeypatch.setattr(packed_copy, "copy_names", changing)
    assert load(llama).logits(LONG) is not None
    assert [path.name for path in folder.iterdir() if not path.name.endswith(".lock")] == []


def test_who_finds_another_writing_goes_on_without(llama, folder, opened):
    load(llama)
    (name,) = there(folder)
    (folder / name).unlink()
    with (folder / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        load(llama)
    assert there(folder) == []


def test_two_at_once(llama, folder):
    want = load(llama, packed_cache=False).logits(LONG)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(engine.logits(LONG), want) for engine in pool.map(load, [llama] * 4))
    assert len(there(folder)) == 1


KILLED = """
import os, sys
from tokenmill.engine import load
from tokenmill.loader import packed_copy
from tokenmill.weights.packed import writer
packed_copy.SMALLEST = 0
left, write = int(sys.argv[2]), os.pwrite
writer.PART = 1000  # so that there are many writes
def dying(file, data, at):
    global left
    left -= 1
    if left < 0:
        write(file, data[: len(data) // 2], at)
        os.kill(os.getpid(), 9)
    return write(file, data, at)
writer.os.pwrite = dying
load.load(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 3])
def test_killed_while_writing(llama, folder, at, opened):
    kill_and_go_on(llama, folder, at, opened)


@pytest.mark.long
@pytest.mark.parametrize("at", range(20))
def test_killed_at_every_write(llama, folder, at, opened):
    kill_and_go_on(llama, folder, at, opened)


def kill_and_go_on(llama, folder, at, opened):
    assert subprocess.run([sys.executable, "-c", KILLED, str(llama), str(at)], check=False).returncode == -9
    assert there(folder) == [] and len(list(folder.glob(".*-*"))) >= 1
    want = load(llama, packed_cache=False).logits(LONG)
    assert torch.equal(load(llama).logits(LONG), want)
    assert torch.equal(load(llama).logits(LONG), want)
    assert opened == ["model", "model", "copy"]
    assert [path.name for path in folder.glob(".*-*") if not path.name.endswith(".lock")] == []


def test_settings_that_are_wrong_are_refused_as_without_a_copy(llama):
    load(llama)
    for packed_cache in (True, False):
        with pytest.raises(ConfigError, match="block_size"):
            load(llama, block_size=10_000, packed_cache=packed_cache)


def test_the_model_must_still_be_there(llama):
    load(llama)
    shutil.rmtree(llama)
    with pytest.raises(CheckpointError):
        load(llama)
