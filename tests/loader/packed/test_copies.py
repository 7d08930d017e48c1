"""The folder of packed copies by itself: names, what counts as a copy, and who goes first where there is no room."""

import fcntl
import os
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.weights.packed.test_reader import WEIGHTS, written
from tokenmill.errors import CapacityError, CheckpointError, PackedModelError
from tokenmill.loader import copies as module
from tokenmill.loader.copies import (
    CopiesFolder,
    copies,
    copies_folder,
    copy_names,
    delete_copy,
    make_room,
    room_for_copy,
    start_reading,
    without_remedy,
    writing_copy,
)
from tokenmill.memory import disk_limit
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.packed.reader import ANY_DTYPE, BEGIN, MAGIC

NAMES = [f"{letter}-{number:016x}.packed" for number, letter in enumerate("abc")]
CONFIG = EngineConfig(program="native", dtype="float32", scheme="q8")


def copy_name(model, config):
    return copy_names(model, config)[config.dtype]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        (path / name).write_text(name)
    return path


@pytest.fixture
def three(folder):
    """Three copies, the first of which was not used for longest."""
    folder.mkdir(parents=True)
    for number, name in enumerate(NAMES):
        written(folder / name, copy=name, source=f"/models/{name[0]}")
        os.utime(folder / name, (1000 + number, 1000 + number))
    return folder


def test_the_name_of_a_copy(model, monkeypatch):
    name = copy_name(model, CONFIG)
    assert re.fullmatch(r"model-native-float32-q8-[0-9a-f]{16}\.packed", name) and module.NAMES.fullmatch(name)
    assert copy_names(model, CONFIG) == {"float32": name, ANY_DTYPE: name.replace("float32", "any-dtype")}
    assert copy_name(model, CONFIG) == copy_name(model, replace(CONFIG, max_length=7)) == name
    others = [{"program": "eager"}, {"dtype": "bfloat16"}, {"scheme": "q4"}, {"fingerprint": "full"}]
    names = {copy_name(model, replace(CONFIG, **how)) for how in others} | {name}
    assert len(names) == 5
    os.utime(model / "config.json", ns=(1, 1))
    assert copy_name(model, CONFIG) not in names
    os.utime(model / "config.json", ns=(1, 2))
    assert copy_name(model, CONFIG) not in names
    monkeypatch.setattr(module, "__version__", "another")
    names.add(copy_name(model, CONFIG))
    assert len(names) == 6
    (model / "x.gguf").write_text("any")
    assert copy_name(model / "x.gguf", CONFIG).startswith("x-")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="is a link to nowhere"):
        copy_name(model, CONFIG)


def test_the_name_of_a_copy_with_the_tokenizer_of_another_model(model, tmp_path):
    """A digest of samples misses what is edited in place in a large tokenizer.json; its time tells it."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_text("{}")
    config = replace(CONFIG, tokenizer=str(other))
    names = {copy_name(model, CONFIG), copy_name(model, config)}
    os.utime(other / "tokenizer.json", ns=(1, 1))
    assert len(names | {copy_name(model, config)}) == 3


def test_the_name_of_a_copy_of_metas_layout(model, tmp_path):
    """Its tokenizer may lie beside the directory."""
    (model / "config.json").rename(model / "params.json")
    names = {copy_name(model, CONFIG)}
    for text in ("one", "two"):
        (tmp_path / "tokenizer.model").write_text(text)
        names.add(copy_name(model, CONFIG))
    (model / "tokenizer.model").write_text("three")
    names.add(copy_name(model, CONFIG))
    (tmp_path / "tokenizer.model").write_text("which is not read any more")
    assert len(names | {copy_name(model, CONFIG)}) == 4


def test_what_is_listed(three):
    others = {
        "mine.packed": None,
        NAMES[0][:-1]: NAMES[0][:-1],
        f"d-{3:016x}.packed": None,
        f"e-{0xABC:016X}.packed": "e",
    }
    for name, copy in others.items():
        written(three / name, copy=copy)
    (three / f"f-{5:016x}.packed").write_bytes(MAGIC + b"damaged")
    (three / f"g-{6:016x}.packed").write_bytes(b"letters")
    (three / f"h-{7:016x}.packed").mkdir()
    found = copies()
    assert [copy.path.name for copy in found] == [*NAMES, f"f-{5:016x}.packed"]
    assert [(copy.source, copy.kind, copy.used_at) for copy in found[:3]] == [
        (f"/models/{name[0]}", "native float32 q8", 1000.0 + number) for number, name in enumerate(NAMES)
    ]
    assert all(copy.num_bytes == copy.path.stat().st_size > BEGIN for copy in found[:3])
    assert (found[3].source, found[3].kind) == ("", "unknown")


def there(folder):
    return sorted(path.name for path in folder.glob("*.packed"))


def test_copies_go_by_their_last_use_until_there_is_room(three, monkeypatch):
    sizes = [copy.num_bytes for copy in copies()]
    make_room(1, sum(sizes) + 1)
    assert there(three) == NAMES
    make_room(2, sum(sizes) + 1)
    assert there(three) == NAMES[1:]
    make_room(sizes[1], sizes[1] + sizes[2])
    assert there(three) == NAMES[2:]
    size = sizes[2]
    said = r"^packed_limit for a packed copy: .* needed, .* available; change packed_limit$"
    with pytest.raises(CapacityError, match=said) as raised:
        make_room(size + 1, size)
    assert (raised.value.needed, raised.value.available) == (size + 1, size)
    assert there(three) == NAMES[2:], "where that cannot make room nothing goes"
    free = SimpleNamespace(free=99)
    monkeypatch.setattr(disk_limit.shutil, "disk_usage", lambda path: free if path == three else None)
    make_room(99, 10 * size)
    assert there(three) == NAMES[2:]
    with pytest.raises(
        CapacityError, match=r"^disk space for a packed copy: 100 B needed, 99 B available; change TOKEN"
    ):
        make_room(100, 10 * size)
    assert there(three) == []


def test_what_others_have_begun_counts(three):
    size = copies()[0].num_bytes
    begun = three / f".{NAMES[0]}.77-abababab"
    begun.write_bytes(MAGIC + bytes(size))
    with pytest.raises(CapacityError) as raised:
        make_room(size, 2 * size)
    assert raised.value.available == 2 * size - begun.stat().st_size
    with pytest.raises(CapacityError) as raised:
        make_room(1, 1)
    assert raised.value.available == 0
    assert [file.path for file in CopiesFolder().begun()] == [begun]
    for data in (b"", MAGIC, bytes(8)):
        begun.write_bytes(data)
        assert [file.path for file in CopiesFolder().begun()] == [begun]
    begun.write_bytes(b"letters!")
    assert CopiesFolder().begun() == []


def test_one_at_a_time_makes_room(three, monkeypatch):
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    made = []
    monkeypatch.setattr(module, "make_room", lambda *given: made.append(given))
    with room_for_copy(7, 9) as has_room:
        assert has_room and made == [(7, 9)]
        with room_for_copy(7, 9) as has_room_too:
            assert not has_room_too and made == [(7, 9)]
    with room_for_copy(8, 9) as has_room:
        assert has_room


def test_one_at_a_time_writes_a_copy(folder):
    path = folder / NAMES[0]
    with writing_copy(path) as is_alone:
        assert is_alone and folder.is_dir()
        with writing_copy(path) as is_alone_too, writing_copy(folder / NAMES[1]) as writes_another:
            assert not is_alone_too and writes_another
        path.write_text("the copy")
    names = sorted(file.name for file in folder.iterdir())
    assert names == [f".{path.name}.lock", path.name], "without a copy it has no lock"


def test_what_killed_processes_left_goes(three):
    dead, alive = (three / f".{name}.77-abababab" for name in NAMES[:2])
    for path in (dead, alive):
        path.write_bytes(MAGIC)
    with (three / f".{NAMES[1]}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with writing_copy(three / NAMES[2]):
            assert alive.exists() and not dead.exists()


def test_a_copy_is_deleted_with_what_is_remembered_of_it(three, monkeypatch):
    forgotten = []
    monkeypatch.setattr(module, "forget", forgotten.append)
    path, lock = three / NAMES[0], three / f".{NAMES[0]}.lock"
    delete_copy(path)
    delete_copy(path)
    assert forgotten == [path, path] and not path.exists() and not lock.exists()
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        delete_copy(three / NAMES[0])
        assert lock.exists(), "of a process that writes the copy"
    CopiesFolder().delete(three / NAMES[1])
    assert there(three) == [NAMES[2]] and forgotten[-1] == three / NAMES[1]


def test_what_is_read(model, folder, caplog, monkeypatch):
    assert start_reading(model, CONFIG) is None
    folder.mkdir(parents=True)
    name = copy_name(model, CONFIG)
    path = written(folder / name, copy=name)
    reader = start_reading(model, CONFIG)
    assert reader.path == path and bytes(reader.wait()) == WEIGHTS
    for same in ({}, {"program": "auto"}, {"scheme": "auto", "dtype": "auto"}, {"program": "auto", "max_length": 7}):
        assert start_reading(model, replace(CONFIG, **same)).path == path
    for other in ({"scheme": "q4"}, {"program": "eager", "dtype": "auto"}, {"packed_cache": False}):
        assert start_reading(model, replace(CONFIG, **other)) is None
    assert start_reading(path, EngineConfig(packed_cache=False)).path == path
    assert not caplog.messages
    written(path, copy="another")
    assert start_reading(model, CONFIG) is None
    said = f"{path} is another file under this name: its copy is 'another'; the model's own files are read, and another"
    assert caplog.messages == [f"{said} copy is made"]


def test_a_copy_that_serves_in_any_dtype_is_read_for_each(model, folder):
    folder.mkdir(parents=True)
    name = copy_names(model, CONFIG)[ANY_DTYPE]
    path = written(folder / name, copy=name, dtype=ANY_DTYPE)
    for dtype in ("auto", "float32", "bfloat16", "float16"):
        assert start_reading(model, replace(CONFIG, dtype=dtype)).path == path
    assert start_reading(model, replace(CONFIG, scheme="q4")) is None
    other = written(folder / copy_name(model, CONFIG), copy=copy_name(model, CONFIG))
    for number, newer in enumerate((other, path)):
        os.utime(newer, (2000 + number, 2000 + number))
    assert start_reading(model, CONFIG).path == path, "which was used last"
    assert [copy.kind for copy in copies()] == ["native any-dtype q8", "native float32 q8"]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("x is damaged; make it again with `tokenmill pack`", "x is damaged"),
        ("x is damaged: make it again", "x is damaged"),
        ("x is damaged; make it again", "x is damaged"),
        ("x is damaged", "x is damaged"),
    ],
)
def test_the_advice_to_make_it_again_is_left_out(said, left):
    assert without_remedy(PackedModelError(said)) == left


def test_the_folder_is_in_the_cache(folder):
    assert copies_folder() == folder
