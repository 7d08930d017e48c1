"""Packed copies while other processes write, delete and replace them, or the files that they were made of."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from contextlib import closing

import pytest
import torch

from tests.marks import needs_native
from tests.tiny_models import save
from tests.weights.packed.conftest import LONG, replace, there
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.errors import CapacityError
from tokenmill.loader import copies, packed_copy
from tokenmill.loader.packed_copy import load_with_copy, open_model
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.packed import reader, verified
from tokenmill.weights.packed.model import PackedCheckpoint
from tokenmill.weights.packed.reader import BEGIN, MAGIC
from tokenmill.weights.packed.writer import PackedWriter

pytestmark = needs_native


def halves(folder):
    return [path.name for path in folder.glob(".*-*") if not path.name.endswith(".lock")]


WRITES = """
import os, sys
from tokenmill.engine import load
from tokenmill.loader import packed_copy
from tokenmill.weights.packed import writer
packed_copy.SMALLEST = 0
write, pauses = os.pwrite, [sys.argv[2] == "pause"]
writer.PART = 1000
def pausing(*given):
    if pauses.pop() if pauses else False:
        print("writing", flush=True)
        sys.stdin.readline()
    return write(*given)
writer.os.pwrite = pausing
print(load.load(sys.argv[1], dtype=sys.argv[3]).generate([[1, 2, 3]], max_new_tokens=8, ignore_eos=True)[0].hash)
"""


def start_writing(model, how, dtype="auto"):
    command = [sys.executable, "-c", WRITES, str(model), how, dtype]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_copy_that_another_process_writes_is_left_to_it(llama, folder, capsys):
    """Others find a damaged copy in its place, or clear the cache; neither takes away what is being written."""
    want = load(llama).generate([[1, 2, 3]], max_new_tokens=8, ignore_eos=True)[0].hash
    (path,) = folder.glob("*.packed")
    damaged = bytearray(path.read_bytes())
    damaged[BEGIN] ^= 1
    path.unlink()
    with start_writing(llama, "pause") as writer:
        assert writer.stdout.readline() == "writing\n"
        path.write_bytes(damaged)
        assert load(llama).generate([[1, 2, 3]], max_new_tokens=8, ignore_eos=True)[0].hash == want
        assert there(folder) == [] and len(halves(folder)) == 1
        path.write_bytes(damaged)
        assert main(["cache", "clear"]) == 0
        load(llama)
        assert there(folder) == [] and len(halves(folder)) == 1
        said, warned = writer.communicate("go on\n")
    assert (said.strip(), warned) == (want, "")
    assert len(there(folder)) == 1 and halves(folder) == []


@pytest.mark.long
@pytest.mark.parametrize("_", range(20))
def test_four_processes_write_at_once(_, llama, folder):
    writers = [start_writing(llama, "") for _ in range(4)]
    results = [(*writer.communicate(), writer.returncode) for writer in writers]
    assert len({said for said, *_ in results}) == 1
    assert {tuple(rest) for _, *rest in results} == {("", 0)}
    assert len(there(folder)) == 1 and halves(folder) == []
    assert isinstance(open_model(llama, EngineConfig(model=str(llama)))[0], PackedCheckpoint)


def test_who_maps_a_copy_keeps_it_when_it_is_deleted(llama, folder, capsys):
    want = load(llama).logits(LONG)
    engine = load(llama)
    assert main(["cache", "clear"]) == 0
    assert "1 packed copy deleted" in capsys.readouterr().out and there(folder) == []
    assert torch.equal(engine.logits(LONG), want)


@pytest.mark.parametrize("before", ["is_verified", "remember"])
@pytest.mark.parametrize("then", ["deleted", "moved with its folder", "replaced"])
def test_a_copy_that_is_gone_before_all_of_it_is_read(llama, folder, caplog, monkeypatch, then, before):
    """A thread of its own reads it, and waits here with this until the copy is gone."""
    load(llama)
    (path,) = folder.glob("*.packed")
    verified.forget(path)
    gone, do = threading.Event(), getattr(reader, before)
    monkeypatch.setattr(reader, before, lambda *given: gone.wait() and do(*given))
    opened = open_model(llama, EngineConfig(model=str(llama)))
    if then == "replaced":
        replace(path, b"x" * path.stat().st_size)
    elif then == "deleted":
        path.unlink()
    else:
        folder.rename(folder.with_name("moved"))
    gone.set()
    _, source = load_with_copy(*opened, None)
    assert isinstance(source, PackedCheckpoint) and caplog.text == ""


@pytest.mark.parametrize("what", ["model.safetensors", ""])
def test_a_model_that_is_deleted_while_it_is_loaded(llama, folder, caplog, what):
    want = load(llama, packed_cache=False).logits(LONG)
    file = llama / what

    def delete(done, total):
        if done == total:
            shutil.rmtree(file) if file.is_dir() else file.unlink()

    assert torch.equal(load(llama, progress=delete).logits(LONG), want)
    assert there(folder) == [] and halves(folder) == []


def test_a_damaged_copy_in_a_folder_that_is_read_only(llama, folder, caplog, monkeypatch):
    want = load(llama).logits(LONG)
    (path,) = folder.glob("*.packed")
    data = bytearray(path.read_bytes())
    data[BEGIN] ^= 1
    replace(path, data)

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(packed_copy, "delete_copy", refuse)
    monkeypatch.setattr(packed_copy, "writing_copy", refuse)
    assert torch.equal(load(llama).logits(LONG), want)
    assert caplog.text.count("is damaged") == 1 and caplog.text.count("Read-only file system") == 1


def test_a_verified_copy_in_a_folder_that_is_read_only(llama, folder, monkeypatch):
    for _ in range(2):
        load(llama)
    (path,) = folder.glob("*.packed")

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(verified.os, "utime", refuse)
    with path.open("rb") as opened:
        assert verified.is_verified(verified.record_of(path), opened.fileno())


def test_what_killed_processes_left_is_deleted_and_what_others_write_is_not(llama, folder, capsys):
    for delete in (lambda: load(llama), lambda: main(["cache", "clear"])):
        folder.mkdir(parents=True, exist_ok=True)
        dead, alive, other = (folder / f".a[1]-{name * 4}.packed.77-abababab" for name in ("dead", "a11e", "07e5"))
        for path in (dead, alive):
            path.write_bytes(MAGIC)
        other.write_bytes(b"letters")
        named = folder / ".a-letters.packed.77-letters"
        named.write_bytes(MAGIC)
        with (folder / f".a[1]-{'a11e' * 4}.packed.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            delete()
            assert alive.exists() and not dead.exists() and other.exists() and named.exists()


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_who_is_told_of_the_progress_may_raise(llama, folder, kind):
    """Also in the thread that reads matrices: the load ends with that error and leaves nothing."""

    def stop(done, total):
        if done == total:
            raise kind("enough")

    with pytest.raises(kind, match="enough"):
        load(llama, progress=stop)
    assert there(folder) == [] and halves(folder) == []
    assert load(llama).logits(LONG) is not None
    assert len(there(folder)) == 1


def test_a_cache_folder_that_is_a_link(llama, folder, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "link"))
    want = load(llama).logits(LONG)
    assert torch.equal(load(llama).logits(LONG), want)
    assert len(there(tmp_path / "elsewhere" / "packed")) == 1
    assert main(["cache", "clear", "--quiet"]) == 0 and there(tmp_path / "elsewhere" / "packed") == []


def test_times_that_go_back_are_another_model(llama, folder):
    load(llama)
    file = llama / "model.safetensors"
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns - 10**12))
    load(llama)
    assert len(there(folder)) == 2


@pytest.mark.parametrize("place", ["a file", "a link to nothing", "a folder in the copy's place"])
def test_a_place_where_no_copy_can_lie(llama, folder, caplog, place, capsys):
    if place == "a file":
        folder.parent.write_text("a file")
    elif place == "a link to nothing":
        folder.parent.symlink_to(folder.parent.with_name("nothing"))
    else:
        load(llama)
        (path,) = folder.glob("*.packed")
        path.unlink()
        path.mkdir()
    assert load(llama).logits(LONG) is not None
    assert caplog.text.count("will not start faster") == 1
    for verb in ("list", "clear"):
        assert main(["cache", verb]) == 0


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}], ids=["another model", "other settings"])
def test_a_copy_under_the_name_of_another_is_not_taken(llama, folder, tmp_path, caplog, settings):
    """A model of the same shape, or the same model in another form: renamed, its rows and texts would be shared."""
    other = llama if settings else save("mistral-no-window", tmp_path)
    want = load(llama).logits(LONG)
    (right,) = folder.glob("*.packed")
    right.unlink()
    load(other, **settings)
    (wrong,) = folder.glob("*.packed")
    wrong.rename(right)
    assert torch.equal(load(llama).logits(LONG), want)
    assert "is another file under this name" in caplog.text
    caplog.clear()
    assert torch.equal(load(llama).logits(LONG), want) and caplog.text == ""  # it was made again


def test_packed_models_of_others_are_neither_counted_nor_deleted(llama, folder, capsys):
    folder.mkdir(parents=True)
    others = [folder / "mine.packed", folder / f"mine-{'ab' * 8}.packed", folder / f"letters-{'ab' * 8}.packed"]
    for path in others[:2]:
        assert main(["pack", str(llama), "-o", str(path)]) == 0
    others[2].write_bytes(b"my letters")
    kept = [path.read_bytes() for path in others]
    load(llama)
    (copy,) = copies.copies()
    copies.make_room(copy.num_bytes, copy.num_bytes)  # which it has to make room for
    assert main(["cache", "clear"]) == 0
    assert [path.read_bytes() for path in others] == kept
    assert "0 packed copies deleted" in capsys.readouterr().out and there(folder) == sorted(p.name for p in others)


def test_what_another_process_is_writing_counts(llama, folder):
    """Two that write at once stay within the limit together."""
    folder.mkdir(parents=True)
    limit = BEGIN + 1500
    path = folder / f"a-{'ab' * 8}.packed"
    with copies.writing_copy(path), copies.room_for_copy(1000, limit) as has_room:
        assert has_room
        with closing(PackedWriter(path, num_bytes=1000)):
            with copies.room_for_copy(500, limit) as has_room_too:
                assert not has_room_too  # the other is not sure of its room yet
            copies.make_room(500, limit)
            with pytest.raises(CapacityError, match="packed_limit for a packed copy: 501 B needed, 500 B available"):
                copies.make_room(501, limit)
        copies.make_room(1500, limit)
