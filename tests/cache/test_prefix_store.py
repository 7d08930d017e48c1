"""Blocks on disk: found after a restart, shared by processes, never wrong."""

import errno
import hashlib
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from tests.cache.test_pool import pool
from tests.steps import num_fed, plans_of
from tests.tiny_models import prompt, save
from tokenmill.cache import prefix_store
from tokenmill.cache.header import shared_fields
from tokenmill.cache.pool import ROWS
from tokenmill.cache.prefix_folders import OWN_FRONT
from tokenmill.cache.prefix_store import PrefixStore
from tokenmill.cache.snapshot import write_snapshot
from tokenmill.engine.load import load
from tokenmill.errors import CapacityError, ConfigError, SnapshotError
from tokenmill.memory import file_lock
from tokenmill.schedule.sequence import Store

START = prompt(40, seed=2)


def engine_for(path, folder, **how):
    settings = {"dtype": "float32", "max_length": 96, "block_size": 8, "threads": 1, "prefix_dir": str(folder)}
    settings["speculate"] = "off"  # what is fed is counted
    return load(path, **{**settings, **how})


def fed(engine, tokens):
    """Tokens that are fed for a prompt and three more, and the three."""
    plans = plans_of(engine.core)
    try:
        done = engine.generate(tokens, max_new_tokens=3, ignore_eos=True)
    finally:
        del engine.core.loaded.runner.run
    return sum(map(num_fed, plans)), done.tokens


def folders(directory):
    """One for each compatibility header."""
    return [path for path in directory.iterdir() if path.is_dir()]


def blocks(directory):
    return sorted(directory.glob("*/*.kv"))


def num_bytes(directory):
    total = 0
    for file in blocks(directory):
        with suppress(FileNotFoundError):  # another process may delete it
            total += file.stat().st_size
    return total


def store_on(directory, engine, limit_bytes):
    """The engine's store with a limit that is no whole number of MB."""
    loaded = engine.core.loaded
    loaded.runner.prefix_store = PrefixStore(directory, loaded.pool, shared_fields(loaded.compatibility), limit_bytes)


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
        assert len(folders(tmp_path)) == number
    loaded = engine_for(llama, tmp_path, program="native").core.loaded
    header = loaded.compatibility
    assert header["build"] and {"build", "fuse", "kernel", "compile", "program"} <= shared_fields(header).keys()
    for number, name in enumerate(("build", "fuse", "kernel", "compile"), start=len(settings) + 1):
        PrefixStore(tmp_path, loaded.pool, shared_fields({**header, name: "another"}), 1_000_000)
        assert len(folders(tmp_path)) == number


@pytest.mark.parametrize("how", [{}, {"dtype": "bfloat16"}])
def test_an_opened_session_stores_nothing_before_it_runs(how, llama, tmp_path):
    engine_for(llama, tmp_path / "other", **how).session(START).save(tmp_path / "x.kv")
    folder = tmp_path / "blocks"
    engine = engine_for(llama, folder)
    with engine.open_session(tmp_path / "x.kv", convert=True) as session:
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
    store_on(tmp_path, engine, 8 * size)
    for seed in range(6):
        for file in blocks(tmp_path):  # the files of the next prompt are later, however coarse the clock of files is
            os.utime(file, (file.stat().st_mtime - 10,) * 2)
        fed(engine, prompt(40, seed=10 + seed))
        assert num_bytes(tmp_path) <= 8 * size
    assert fed(engine_for(llama, tmp_path), prompt(40, seed=15))[0] < 42
    assert fed(engine_for(llama, tmp_path), START)[0] == 42


def test_a_full_disk_is_said_once_and_the_text_goes_on(llama, tmp_path, monkeypatch):
    engine = engine_for(llama, tmp_path)
    _, wanted = fed(engine_for(llama, tmp_path / "other"), START)

    def full(*_, **__):
        raise SnapshotError("x.kv cannot be written: No space left on device")

    monkeypatch.setattr(prefix_store, "write_buffers", full)
    with pytest.warns(UserWarning, match="no more blocks are kept in .*No space left") as said:
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


def two_processes_say_the_same(code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said[0] == said[1] != ""


@pytest.mark.slow
def test_two_processes_share_a_directory(llama, tmp_path):
    code = (
        "import sys; from tokenmill.engine.load import load;"
        "e = load(sys.argv[1], dtype='float32', max_length=96, block_size=8, threads=1, prefix_dir=sys.argv[2]);"
        "ps = [[(7 * i + j) % 90 + 1 for j in range(40)] for i in range(12)];"
        "print([e.generate(p, max_new_tokens=3, ignore_eos=True).tokens for p in ps + ps])"
    )
    two_processes_say_the_same(code, llama, tmp_path)
    assert {path.name for path in tmp_path.glob("*/.*")} == {".model.json"}  # nothing half is left


def test_what_a_killed_process_left_is_deleted(llama, tmp_path):
    engine_for(llama, tmp_path).close()
    (folder,) = folders(tmp_path)
    old, empty, new = (folder / f".{name * 16}.kv.77-{name * 4}" for name in ("ab", "cd", "ef"))
    others = [
        folder / f".{'ab' * 16}.kv.77-{'12' * 4}",  # which begins with something else
        folder / ".tale.kv.77-abababab",
        folder / f".{'ab' * 16}.kv.backup-of-mine",
        folder.with_name("letters") / old.name,
    ]
    others[-1].parent.mkdir()
    for path in (old, empty, new, *others):
        path.write_bytes(b"" if path == empty else b"my notes" if path == others[0] else bytes(8) + OWN_FRONT)
    for path in (old, empty, *others):
        os.utime(path, (time.time() - 7200,) * 2)
    engine_for(llama, tmp_path).close()
    assert new.exists() and not old.exists() and not empty.exists()  # the new one may be another process's
    assert all(path.exists() for path in others)


# ---- attacks: files under other names, files of others


def other_texts(llama, folder):
    """Two prompts whose blocks lie in one folder, and what follows each in an engine without a store."""
    prompts = [prompt(40, seed=seed) for seed in (2, 3)]
    quiet = [fed(engine_for(llama, folder.with_name("quiet")), each)[1] for each in prompts]
    return prompts, quiet


def check_texts(llama, directory, prompts, wanted):
    """Whatever was done to the directory: each text that of a quiet engine, and what was wrong is mended."""
    engine = engine_for(llama, directory)
    assert [fed(engine, each)[1] for each in prompts] == wanted
    for _ in range(10):
        engine = engine_for(llama, directory)
        if [fed(engine, each) for each in prompts] == [(10, tokens) for tokens in wanted]:
            return
    raise AssertionError("not mended")


def swap(first, second):
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def rename_over(first, second):
    first.replace(second)


def link(first, second):
    second.unlink()
    second.symlink_to(first)


@pytest.mark.parametrize("change", [swap, rename_over, link])
def test_a_block_in_the_place_of_another_is_not_taken(change, llama, tmp_path):
    folder = tmp_path / "blocks"
    prompts, wanted = other_texts(llama, folder)
    for each in prompts:
        fed(engine_for(llama, folder), each)
    own = {}
    for each in prompts:  # the blocks of each prompt
        fed(engine_for(llama, tmp_path / str(each[0])), each)
        own[each[0]] = [path.name for path in blocks(tmp_path / str(each[0]))]
    (place,) = folders(folder)
    for first, second in zip(own[prompts[0][0]], own[prompts[1][0]], strict=True):
        change(place / first, place / second)
    check_texts(llama, folder, prompts, wanted)


def test_a_block_of_another_store_is_not_taken(llama, tmp_path):
    """Rows of another build have the same sizes, but may be other numbers; so have those of another model."""
    folder = tmp_path / "blocks"
    prompts, wanted = other_texts(llama, folder)
    other = save("mistral-no-window", tmp_path / "other")
    for each in prompts:
        fed(engine_for(llama, folder), each)
        fed(engine_for(other, tmp_path / "theirs"), each)
    for file in blocks(tmp_path / "theirs"):
        (here,) = folders(folder)
        (here / file.name).write_bytes(file.read_bytes())
    check_texts(llama, folder, prompts, wanted)


def test_a_session_in_the_place_of_a_block_is_neither_taken_nor_lost(llama, tmp_path):
    folder = tmp_path / "blocks"
    (first, *_), (wanted, *_) = other_texts(llama, folder)
    fed(engine_for(llama, folder), first)
    place = blocks(folder)[0]
    engine = engine_for(llama, folder)
    with engine.session(START) as session:
        session.save(place)
    kept = place.read_bytes()
    for _ in range(2):
        assert fed(engine_for(llama, folder), first)[1] == wanted
    assert place.read_bytes() == kept


def test_files_of_others_are_neither_counted_nor_deleted(llama, tmp_path):
    engine = engine_for(llama, tmp_path)
    fed(engine, START)
    (folder,) = folders(tmp_path)
    size = max(file.stat().st_size for file in blocks(tmp_path))
    session = engine.session(START)
    others = [
        folder.with_name("mine") / "tale.kv",
        folder / "tale.kv",
        folder / f"{'ab' * 16}.kv",  # named as a block, and a session
        folder.with_name("mine") / f"{'cd' * 16}.kv",
    ]
    others[0].parent.mkdir()
    for path in others:
        session.save(path)
    big, block = folder / f"{'ef' * 16}.kv", folder / "backup.kv"
    big.write_bytes(bytes(20 * size))
    block.write_bytes(next(path for path in blocks(tmp_path) if path not in others).read_bytes())
    others += [big, block]
    kept = {path: path.read_bytes() for path in others}
    for path in others:
        os.utime(path, (0, 0))
    store_on(tmp_path, engine, 8 * size)
    for seed in range(6):
        fed(engine, prompt(40, seed=10 + seed))
        assert len(blocks(tmp_path)) - len(others) > 4  # what others have takes no room
    assert {path: path.read_bytes() for path in others} == kept
    assert num_bytes(tmp_path) - sum(map(len, kept.values())) <= 8 * size


# ---- one limit for several engines and processes


def test_engines_share_the_limit(llama, tmp_path):
    engines = [engine_for(llama, tmp_path) for _ in range(4)]
    fed(engines[0], START)
    size = max(file.stat().st_size for file in blocks(tmp_path))
    for engine in engines:
        store_on(tmp_path, engine, 8 * size)
    for number in range(16):
        fed(engines[number % 4], prompt(40, seed=20 + number))
        assert num_bytes(tmp_path) <= 8 * size
    assert num_bytes(tmp_path) > 4 * size


@pytest.mark.slow
def test_processes_share_the_limit(llama, tmp_path):
    limit = 10 * 2400  # a block takes 2,400 bytes
    code = (
        "import sys; from pathlib import Path; from types import ModuleType\n"
        "models = sys.modules['tests.tiny_models'] = ModuleType('unused')  # imports transformers for seconds\n"
        "models.prompt = lambda *_, **how: None; models.save = None\n"
        "from tests.cache.test_prefix_store import engine_for, num_bytes, store_on\n"
        "folder, limit = Path(sys.argv[2]), int(sys.argv[3])\n"
        "e = engine_for(sys.argv[1], folder); store_on(folder, e, limit)\n"
        "ps = [[(7 * i + j) % 90 + 1 for j in range(40)] for i in range(12)]\n"
        "for p in ps + ps:\n"
        "    print(e.generate(p, max_new_tokens=3, ignore_eos=True).tokens)\n"
        "    assert num_bytes(folder) <= limit\n"
    )
    two_processes_say_the_same(code, llama, tmp_path, limit)
    assert limit / 2 < num_bytes(tmp_path) <= limit


@pytest.mark.parametrize("text", ["", "nonsense", "0", "-5", "99999999999999999999", None])
def test_a_wrong_count_is_found_out(text, llama, tmp_path):
    """Of an engine that starts, or that finds no room. None: the file is gone."""
    engine = engine_for(llama, tmp_path)
    fed(engine, START)
    size = max(file.stat().st_size for file in blocks(tmp_path))
    lock = tmp_path / ".tokenmill-blocks"
    lock.unlink() if text is None else lock.write_text(text)
    engine = engine_for(llama, tmp_path)
    store_on(tmp_path, engine, 8 * size)
    for number in range(4):
        fed(engine, prompt(40, seed=20 + number))
        assert 4 * size < num_bytes(tmp_path) <= 8 * size


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks(error, llama, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(file_lock.fcntl, "flock", refuse)
    engine = engine_for(llama, tmp_path)
    fed(engine, START)
    size = max(file.stat().st_size for file in blocks(tmp_path))
    for _ in range(2):
        store_on(tmp_path, engine, 8 * size)
        for number in range(4):
            fed(engine, prompt(40, seed=20 + number))
            assert 4 * size < num_bytes(tmp_path) <= 8 * size


def test_who_holds_the_lock_for_long_costs_blocks_and_no_text(llama, tmp_path):
    """As a process does that was stopped."""
    _, wanted = fed(engine_for(llama, tmp_path / "other"), START)
    engine = engine_for(llama, tmp_path)
    with file_lock.locked(tmp_path / ".tokenmill-blocks"):
        assert fed(engine, START)[1] == wanted
        assert not blocks(tmp_path)
    assert fed(engine_for(llama, tmp_path), START) == (42, wanted)
    assert len(blocks(tmp_path)) == 5


KILLED = """
import os, sys
from tokenmill.engine.load import load
from tokenmill.memory import atomic_file
moment, replace, count = sys.argv[3], os.replace, 0
def killing(self, target):
    global count
    count += str(target).endswith('.kv')
    is_third = str(target).endswith('.kv') and count == 3
    if moment == 'before' and is_third:
        os._exit(9)
    replace(self, target)
    if moment == 'behind' and is_third:
        os._exit(9)
atomic_file.Path.replace = killing
e = load(sys.argv[1], dtype='float32', max_length=96, block_size=8, threads=1, prefix_dir=sys.argv[2], speculate='off')
e.generate([(7 * j) % 90 + 1 for j in range(40)], max_new_tokens=3, ignore_eos=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "behind"])
def test_killed_around_the_rename(moment, llama, tmp_path):
    """The next engine finds what is complete, computes the rest, and counts what there is."""
    folder = tmp_path / "blocks"
    start = [(7 * j) % 90 + 1 for j in range(40)]
    _, wanted = fed(engine_for(llama, tmp_path / "quiet"), start)
    command = [sys.executable, "-c", KILLED, str(llama), str(folder), moment]
    assert subprocess.run(command, check=False).returncode == 9
    left = len(blocks(folder))
    assert left == (2 if moment == "before" else 3)
    engine = engine_for(llama, folder)
    size = blocks(folder)[0].stat().st_size
    store_on(folder, engine, 6 * size + 99)  # files differ by the digits of their checksums
    assert fed(engine, start) == (42 - 8 * left, wanted)
    assert len(blocks(folder)) == 5


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
    loaded = engine_for(llama, tmp_path).core.loaded
    with pytest.raises(CapacityError, match=r"prefix_limit for one block: .* needed, 100 B available"):
        PrefixStore(tmp_path, loaded.pool, {}, 100)


# ---- a store by itself, over a pool whose blocks have 5 slots of 192 bytes

HASH, OTHER = bytes(range(16)), bytes(range(1, 17))
HEADER = {"program": "native", "dtype": "float32"}
SAID = '{"block_size": 5, "dtype": "float32", "layout": 3, "program": "native"}'
LIMIT = 1_000_000


def rows_of(made, block, first=0, last=5):
    return made.read(torch.arange(5 * block + first, 5 * block + last))


def same(rows, others):
    return rows.keys() == others.keys() and all(torch.equal(rows[name], others[name]) for name in rows)


def test_a_block_is_a_file_under_its_hash(tmp_path):
    """Its folder is a digest of what must be equal: by another one nothing that was written would be found."""
    made = pool()
    store = PrefixStore(tmp_path, made, HEADER, LIMIT)
    assert store.find(HASH) is None
    store.save(Store(ROWS, HASH, 2))
    (file,) = blocks(tmp_path)
    folder = hashlib.blake2b(SAID.encode(), digest_size=8).hexdigest()
    assert file == tmp_path / folder / f"{HASH.hex()}.kv"
    assert same(store.find(HASH)(0, 5), rows_of(made, 2))
    assert same(store.read(HASH, ROWS, 1, 4), rows_of(made, 2, 1, 4))
    again = PrefixStore(tmp_path, pool(), dict(reversed(HEADER.items())), LIMIT)
    assert again.find(HASH) is not None and again.find(OTHER) is None
    assert PrefixStore(tmp_path, pool(), {**HEADER, "dtype": "float16"}, LIMIT).find(HASH) is None


def test_a_block_that_is_there_is_not_written_again(tmp_path):
    store = PrefixStore(tmp_path, pool(), HEADER, LIMIT)
    store.save(Store(ROWS, HASH, 2))
    (file,) = blocks(tmp_path)
    os.utime(file, (1000, 1000))
    store.save(Store(ROWS, HASH, 3))
    assert file.stat().st_mtime == 1000
    store.read(HASH, ROWS, 0, 1)
    assert file.stat().st_mtime > time.time() - 100, "the last read decides what is deleted"


def test_a_file_says_which_block_it_is_and_of_which_store(tmp_path):
    store = PrefixStore(tmp_path, pool(), HEADER, LIMIT)
    store.save(Store(ROWS, HASH, 2))
    (file,) = blocks(tmp_path)
    file.rename(file.with_name(f"{OTHER.hex()}.kv"))
    with pytest.raises(SnapshotError, match=rf"{OTHER.hex()}.kv is another block: its block is '{HASH.hex()}'$"):
        store.read(OTHER, ROWS, 0, 5)
    assert store.find(OTHER) is None, "it counts as never written"
    elsewhere = PrefixStore(tmp_path, pool(), {**HEADER, "dtype": "float16"}, LIMIT)
    elsewhere.save(Store(ROWS, HASH, 2))
    (theirs,) = set(blocks(tmp_path)) - {file.with_name(f"{OTHER.hex()}.kv")}
    theirs.rename(file)
    said = hashlib.blake2b(SAID.replace("float32", "float16").encode(), digest_size=16).hexdigest()
    with pytest.raises(SnapshotError, match=rf"{HASH.hex()}.kv is another block: its store is '{said}'$"):
        store.read(HASH, ROWS, 0, 5)


def test_a_file_holds_one_tensor_of_bytes(tmp_path):
    store = PrefixStore(tmp_path, pool(), HEADER, LIMIT)
    store.save(Store(ROWS, HASH, 2))
    (file,) = blocks(tmp_path)
    facts = {"block": HASH.hex(), "store": hashlib.blake2b(SAID.encode(), digest_size=16).hexdigest()}
    write_snapshot(file, facts, {"other": torch.zeros(960, dtype=torch.uint8)})
    with pytest.raises(SnapshotError, match=r"is damaged: it should hold 'rows', and holds \['other'\]$"):
        store.read(HASH, ROWS, 0, 5)
    write_snapshot(file, facts, {"rows": torch.zeros(959, dtype=torch.uint8)})
    with pytest.raises(SnapshotError, match=r"it holds torch.uint8 \[959\], which should be 960 bytes$"):
        store.read(HASH, ROWS, 0, 5)
    write_snapshot(file, facts, {"rows": torch.zeros(960, dtype=torch.uint8)})
    assert not any(tensor.any() for tensor in store.read(HASH, ROWS, 0, 5).values())


def test_a_damaged_block_is_written_anew(tmp_path):
    made = pool()
    store = PrefixStore(tmp_path, made, HEADER, LIMIT)
    store.save(Store(ROWS, HASH, 2))
    (file,) = blocks(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match="damaged"):
        store.read(HASH, ROWS, 0, 5)
    assert store.find(HASH) is None
    store.save(Store(ROWS, HASH, 2))
    assert same(store.find(HASH)(0, 5), rows_of(made, 2))


def test_what_no_store_has_written_stays_in_the_place_of_a_block(tmp_path):
    store = PrefixStore(tmp_path, pool(), HEADER, LIMIT)
    store.save(Store(ROWS, HASH, 2))
    (file,) = blocks(tmp_path)
    file.unlink()
    file.symlink_to("nowhere")
    store.save(Store(ROWS, HASH, 2))
    assert file.is_symlink() and store.find(HASH) is None
    file.unlink()
    file.mkdir()
    store.save(Store(ROWS, HASH, 2))
    assert file.is_dir() and store.find(HASH) is None
    store.save(Store(ROWS, OTHER, 2))
    assert store.find(OTHER) is not None


def test_a_folder_that_only_is_read_gets_no_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(prefix_store.os, "access", lambda path, how: not how & os.W_OK)
    store = PrefixStore(tmp_path, pool(), HEADER, LIMIT)
    store.save(Store(ROWS, HASH, 2))
    assert blocks(tmp_path) == [] and not (tmp_path / ".tokenmill-blocks").exists()


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SnapshotError, match=r"file/[0-9a-f]{16} cannot be made: Not a directory$"):
        PrefixStore(tmp_path / "file", pool(), HEADER, LIMIT)
    PrefixStore(tmp_path / "a" / "b", pool(), HEADER, LIMIT).save(Store(ROWS, HASH, 1))
    assert len(blocks(tmp_path / "a" / "b")) == 1


def test_the_limit_must_hold_a_block(tmp_path):
    said = r"^prefix_limit for one block: 960 B needed, 959 B available; change prefix_limit or block_size$"
    with pytest.raises(CapacityError, match=said):
        PrefixStore(tmp_path, pool(), HEADER, 959)
    store = PrefixStore(tmp_path, pool(), HEADER, 960)
    store.save(Store(ROWS, HASH, 1))
    assert blocks(tmp_path) == [], "with its header it is larger than that"
    assert store.find(HASH) is None


def test_the_size_of_a_file_counts(tmp_path):
    one = PrefixStore(tmp_path / "one", pool(), HEADER, LIMIT)
    one.save(Store(ROWS, HASH, 1))
    size = num_bytes(tmp_path / "one")
    store = PrefixStore(tmp_path / "two", pool(), HEADER, 2 * size)
    for number, count in enumerate([1, 2, 1]):  # a tenth is left free where files must go
        store.save(Store(ROWS, bytes([number] * 16), 1))
        assert num_bytes(tmp_path / "two") == count * size
    tight = PrefixStore(tmp_path / "three", pool(), HEADER, 2 * size - 1)
    for number in range(3):
        tight.save(Store(ROWS, bytes([number] * 16), 1))
        assert num_bytes(tmp_path / "three") == size


def test_blocks_of_before_are_counted(tmp_path):
    """Whatever the lock's file says: somebody may have put blocks there."""
    PrefixStore(tmp_path, pool(), HEADER, LIMIT).save(Store(ROWS, HASH, 1))
    size = num_bytes(tmp_path)
    (tmp_path / ".tokenmill-blocks").write_text("0")
    PrefixStore(tmp_path, pool(), HEADER, 2 * size - 1).save(Store(ROWS, OTHER, 1))
    assert num_bytes(tmp_path) == size
