"""What is kept for a model: told when it is first written, part of the list, deleted with it, while an engine runs."""

import json
import logging
import mmap
import os
import subprocess
import sys

import pytest

import tokenmill
from tests import disk_of_models
from tests.disk_of_models import contents
from tests.marks import needs_native
from tokenmill.cache.prefix_folders import NOTE, delete_blocks, note_model, prefix_folders
from tokenmill.loader import packed_copy
from tokenmill.loader.at_hand.kept import all_kept, prefixes_folder
from tokenmill.memory.open_files import processes_with

PROMPT = list(range(1, 70))


@pytest.fixture
def disk(tmp_path, made, monkeypatch):
    monkeypatch.setattr(packed_copy, "SMALLEST", 0)
    return disk_of_models.make(tmp_path, made, monkeypatch)


def load(name):
    prefixes = str(prefixes_folder())
    return tokenmill.load(name, program="native", dtype="float32", threads=1, prefix_dir=prefixes, block_size=16)


def tokens_of(engine):
    return engine.generate([PROMPT], max_new_tokens=8, ignore_eos=True)[0].tokens


@needs_native
@pytest.mark.parametrize(
    "name", ["whole", *(pytest.param(name, marks=pytest.mark.slow) for name in ("one/files:a-q8_0.gguf", "one/tiny"))]
)
def test_a_model_that_is_removed_while_it_runs(disk, tm, name, caplog):
    """The engine goes on with what it has mapped; its blocks are written again, and the next load fails in a line."""
    caplog.set_level(logging.INFO, "tokenmill")
    with load(name) as engine:
        first = tokens_of(engine)
        said = [record.getMessage() for record in caplog.records]
        assert sum("a packed copy of" in line and "packed_cache=False" in line for line in said) == 1
        assert sum("blocks of prompts are kept in" in line and "prefix_cache=False" in line for line in said) == 1
        listed = json.loads(tm("list", "--json")[1])
        [model] = [each for each in listed["models"] if each["name"] == name]
        assert len(model["packed_copies"]) == 1 and model["prefixes"][0]["num_blocks"] == 4
        code, _, err = tm("rm", name, "--yes")
        kind = "native float32 dense" if name == "one/tiny" else "native any-dtype file"
        assert code == 0 and f"its packed copy ({kind})" in err and "4 blocks of its prompts" in err
        assert not list((disk.home / "cache" / "packed").glob("*.packed")) and not prefix_folders(prefixes_folder())
        assert tokens_of(engine) == first
        other = engine.generate([PROMPT[::-1]], max_new_tokens=8, ignore_eos=True)
        assert len(other[0].tokens) == 8
    assert prefix_folders(prefixes_folder())[0].num_blocks == 4  # of the other prompt
    assert tm("generate", "-m", name, "--tokens", "1,2", "-n", 1, "--quiet")[0] == 2


@needs_native
def test_the_command_line_says_it_in_its_own_words(disk, tm):
    arguments = (
        "generate",
        "-m",
        "whole",
        "--tokens",
        ",".join(map(str, PROMPT)),
        "-n",
        1,
        "--prefix-dir",
        disk.root / "p",
    )
    for wanted in (1, 0):
        code, _, err = tm(*arguments)
        assert code == 0
        assert err.count("--no-packed-cache keeps none, `tokenmill cache clear` deletes it") == wanted
        assert err.count("--no-prefix-cache keeps none, and the folder may be deleted") == wanted


@needs_native
def test_only_what_is_kept_is_deleted_where_that_is_asked_for(disk, tm):
    before = contents(disk.store)
    with load("ollama:tiny:latest") as engine:
        tokens_of(engine)
    assert tm("rm", "ollama:tiny:latest", "--yes")[0] == 2
    assert len(list((disk.home / "cache" / "packed").glob("*.packed"))) == 1
    code, _, err = tm("rm", "ollama:tiny:latest", "--kept-only", "--yes")
    assert code == 0 and "its packed copy" in err
    assert not list((disk.home / "cache" / "packed").glob("*.packed")) and not prefix_folders(prefixes_folder())
    assert contents(disk.store) == before
    assert "nothing is kept for it" in tm("rm", "ollama:tiny:latest", "--kept-only", "--yes")[2]


def test_other_files_in_a_folder_of_blocks_stay(tmp_path):
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    assert note_model(folder, "/models/x") and not note_model(folder, "/models/y")
    (folder / f"{'0' * 32}.kv").write_bytes(b"of somebody else")
    (folder / "notes.txt").write_text("of the user")
    (tmp_path / "no-such-name").mkdir()
    [found] = prefix_folders(tmp_path)
    assert (found.model, found.num_blocks, found.num_bytes) == ("/models/x", 0, 0)
    delete_blocks(found)
    assert sorted(path.name for path in folder.iterdir()) == [f"{'0' * 32}.kv", "notes.txt"]


def test_a_damaged_note_is_no_note(tmp_path):
    folder = tmp_path / "0123456789abcdef"
    folder.mkdir()
    (folder / NOTE).write_text('{"model": "/models/x"}')
    [found] = prefix_folders(tmp_path)
    assert found.model == ""
    delete_blocks(found)
    assert (folder / NOTE).exists()


def test_copies_without_their_model_are_still_listed(disk, tm):
    assert all_kept() == {}
    code, out, _ = tm("list", "--cache")
    assert code == 0 and "whole.gguf" in out


HOLD = """
import mmap, sys, time
opened = open(sys.argv[1], "rb")
mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
if sys.argv[2] == "mapped":
    opened.close()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("how", ["open", "mapped"])
def test_processes_that_use_a_file_are_told(tmp_path, how):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x" * mmap.PAGESIZE)
    (tmp_path / "link").symlink_to(file)
    command = [sys.executable, "-c", HOLD, str(file), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        found = processes_with([tmp_path / "link"])
        process.communicate("")
    assert list(found) == [process.pid]
    beginning = found[process.pid].removesuffix("…").rstrip()  # of the command, and its end may be left out
    assert len(beginning) > 50 and " ".join(command).startswith(beginning)
    assert processes_with([file]) == {} == processes_with([])


def test_this_process_is_not_told(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"x")
    with file.open("rb"):
        assert os.getpid() not in processes_with([file])
