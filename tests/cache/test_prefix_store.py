"""Blocks on disk: found after a restart, shared by processes, never wrong."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tiny_models import prompt, save
from tokenmill.cache import prefix_store
from tokenmill.cache.prefix_store import PrefixStore
from tokenmill.cache.snapshot import shared_fields
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError, SnapshotError

START = prompt(40, seed=2)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return save("llama", tmp_path_factory.mktemp("models"))


def engine_for(path, folder, **how):
    settings = {"dtype": "float32", "max_length": 96, "block_size": 8, "threads": 1, "prefix_dir": str(folder)}
    settings["speculate"] = "off"  # what is fed is counted
    return load(path, **{**settings, **how})


def fed(engine, tokens):
    """Tokens that are fed for a prompt and three more, and the three."""
    count = 0
    run = engine.core.loaded.runner.run

    def counted(plan, *fed):
        nonlocal count
        count += sum(work.count for work in plan.work)
        return run(plan, *fed)

    engine.core.loaded.runner.run = counted
    try:
        done = engine.generate(tokens, max_new_tokens=3, ignore_eos=True)
    finally:
        del engine.core.loaded.runner.run
    return count, done.tokens


def test_a_prompt_is_found_after_a_restart(llama, tmp_path):
    count, wanted = fed(engine_for(llama, tmp_path), START)
    assert count == 42
    again, tokens = fed(engine_for(llama, tmp_path), START)
    assert (again, tokens) == (42 - 32, wanted)  # four whole blocks; the last token is always fed
    more, _ = fed(engine_for(llama, tmp_path), [*START[:17], 1, 2, 3])
    assert more == 22 - 16


@pytest.mark.parametrize("how", [{"block_size": 4}, {"dtype": "bfloat16"}, {"cache_format": "int8"}, {"scheme": "q8"}])
def test_other_settings_find_nothing(how, llama, tmp_path):
    fed(engine_for(llama, tmp_path), START)
    assert fed(engine_for(llama, tmp_path, **how), START)[0] == 42


def test_programs_builds_and_fusions_have_folders_of_their_own(llama, tmp_path):
    eager = {"program": "eager", "scheme": "dense"}
    settings = [eager, {"program": "native"}, {**eager, "fuse": "none"}]
    for number, how in enumerate(settings, start=1):
        assert fed(engine_for(llama, tmp_path, **how), START)[0] == 42
        assert len(list(tmp_path.iterdir())) == number
    loaded = engine_for(llama, tmp_path, program="native").core.loaded
    header = loaded.compatibility
    assert header["build"] and {"build", "fuse", "kernel", "compile", "program"} <= shared_fields(header).keys()
    for number, name in enumerate(("build", "fuse", "kernel", "compile"), start=len(settings) + 1):
        PrefixStore(tmp_path, loaded.pool, shared_fields({**header, name: "another"}), 1_000_000)
        assert len(list(tmp_path.iterdir())) == number


@pytest.mark.parametrize("how", [{}, {"dtype": "bfloat16"}])
def test_an_opened_session_stores_nothing_before_it_runs(how, llama, tmp_path):
    engine_for(llama, tmp_path / "other", **how).session(START).save(tmp_path / "x.kv")
    folder = tmp_path / "blocks"
    engine = engine_for(llama, folder)
    with engine.open(tmp_path / "x.kv", convert=True) as session:
        assert engine.core.scheduler.allocator.num_named == 0
        assert not list(folder.glob("*/*.kv"))
        session.generate(max_new_tokens=4, ignore_eos=True)
    own = 0 if how else (len(START) + 3) // 8
    assert len(list(folder.glob("*/*.kv"))) == engine.core.scheduler.allocator.num_named == own
    wanted = fed(engine_for(llama, tmp_path / "third"), START)[1]
    assert fed(engine_for(llama, folder), START) == (10 if own else 42, wanted)


def test_a_directory_that_is_only_read_serves_its_blocks_and_loses_none(llama, tmp_path, monkeypatch):
    """By patches, because permissions do not bind every user that runs these tests."""
    _, wanted = fed(engine_for(llama, tmp_path), START)
    files = {file: file.read_bytes() for file in tmp_path.glob("*/*.kv")}

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(prefix_store.os, "access", lambda *_: False)
    monkeypatch.setattr(prefix_store.os, "utime", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    for _ in range(2):
        assert fed(engine_for(llama, tmp_path, prefix_limit=1), START) == (10, wanted)
    engine = engine_for(llama, tmp_path)
    fed(engine, prompt(40, seed=9))  # new blocks, which are not written
    assert fed(engine, START) == (10, wanted)
    assert {file: file.read_bytes() for file in tmp_path.glob("*/*.kv")} == files


def test_a_damaged_block_in_a_directory_that_is_only_read_is_computed(llama, tmp_path, monkeypatch):
    _, wanted = fed(engine_for(llama, tmp_path), START)
    for file in tmp_path.glob("*/*.kv"):
        file.write_bytes(file.read_bytes()[:100])

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(prefix_store.os, "access", lambda *_: False)
    monkeypatch.setattr(Path, "unlink", refuse)
    engine = engine_for(llama, tmp_path)
    assert fed(engine, START) == (42, wanted)
    assert fed(engine, START)[1] == wanted


def test_damaged_files_count_as_never_written(llama, tmp_path):
    _, wanted = fed(engine_for(llama, tmp_path), START)
    files = sorted(tmp_path.glob("*/*.kv"))
    assert len(files) == 5
    for number, file in enumerate(files):
        data = bytearray(file.read_bytes())
        data[len(data) // (number + 1) - 1] ^= 1
        file.write_bytes(data if number % 2 else data[:100])
    counts = []
    for _ in files:  # a chain is mended from its front, a block each time
        count, tokens = fed(engine_for(llama, tmp_path), START)
        assert tokens == wanted
        counts.append(count)
    assert counts[0] == 42
    assert fed(engine_for(llama, tmp_path), START) == (10, wanted)


def test_the_longest_unread_go_first(llama, tmp_path):
    engine = engine_for(llama, tmp_path)
    fed(engine, START)
    size = max(file.stat().st_size for file in tmp_path.glob("*/*.kv"))
    loaded, header = engine.core.loaded, shared_fields(engine.core.loaded.compatibility)
    loaded.runner.prefix_store = PrefixStore(tmp_path, loaded.pool, header, 8 * size)  # engines count in MB
    for seed in range(6):
        fed(engine, prompt(40, seed=10 + seed))
        assert sum(file.stat().st_size for file in tmp_path.glob("*/*.kv")) <= 8 * size
    assert fed(engine_for(llama, tmp_path), prompt(40, seed=15))[0] < 42
    assert fed(engine_for(llama, tmp_path), START)[0] == 42


def test_a_full_disk_is_said_once_and_the_text_goes_on(llama, tmp_path, monkeypatch):
    engine = engine_for(llama, tmp_path)
    _, wanted = fed(engine_for(llama, tmp_path / "other"), START)

    def full(*_, **__):
        raise SnapshotError("x.kv cannot be written: No space left on device")

    monkeypatch.setattr(prefix_store, "write_bytes", full)
    with pytest.warns(UserWarning, match="no more blocks are kept on disk.*No space left") as said:
        assert fed(engine, START)[1] == wanted
    assert len(said) == 1


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_costs_one_block(make, llama, tmp_path):
    """Nothing is said, the block is computed each time, and later blocks are written."""
    _, wanted = fed(engine_for(llama, tmp_path), START)
    first, *others = sorted(tmp_path.glob("*/*.kv"))
    for file in (first, *others):
        file.unlink()
    make(first)
    assert fed(engine_for(llama, tmp_path), START) == (42, wanted)
    assert all(file.is_file() for file in others) and not first.is_file()
    assert fed(engine_for(llama, tmp_path), START)[1] == wanted


def test_two_processes_share_a_directory(llama, tmp_path):
    code = (
        "import sys; from tokenmill.engine.load import load;"
        "e = load(sys.argv[1], dtype='float32', max_length=96, block_size=8, threads=1, prefix_dir=sys.argv[2]);"
        "ps = [[(7 * i + j) % 90 + 1 for j in range(40)] for i in range(12)];"
        "print([e.generate(p, max_new_tokens=3, ignore_eos=True).tokens for p in ps + ps])"
    )
    command = [sys.executable, "-c", code, str(llama), str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said[0] == said[1] != ""
    assert not list(tmp_path.glob("*/.*"))  # nothing half is left


def test_what_a_killed_process_left_is_deleted(llama, tmp_path):
    engine_for(llama, tmp_path).close()
    (folder,) = tmp_path.iterdir()
    old, new = (folder / f".{name * 16}.kv.77-{name * 4}" for name in ("ab", "cd"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    engine_for(llama, tmp_path).close()
    assert new.exists() and not old.exists()  # which may be another process's


def test_what_is_refused(llama, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"prefix_dir = .*file' is not allowed: a directory, which may be new"):
        engine_for(llama, tmp_path / "file")
    with pytest.raises(SnapshotError, match="Not a directory"):
        engine_for(llama, tmp_path / "file" / "below")
    with pytest.raises(ConfigError, match="prefix_dir"):
        engine_for(llama, tmp_path, prefix_cache=False)
    with pytest.raises(ConfigError, match="prefix_limit"):
        engine_for(llama, tmp_path, prefix_limit=0)
