"""Digests of a model's files: samples miss what an edit in place leaves between them, a full reading does not."""

import shutil

import pytest

from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.errors import ConfigError, SnapshotError
from tokenmill.weights import fingerprint as module
from tokenmill.weights.fingerprint import fingerprint


@pytest.fixture
def edited(tmp_path, monkeypatch):
    """A model, and the same with one number changed outside all samples, which are few here."""
    monkeypatch.setattr(module, "HEAD", 4096)
    monkeypatch.setattr(module, "PAGES", 2)
    path = save("llama", tmp_path)
    other = shutil.copytree(path, tmp_path / "other")
    file = other / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[20_000] ^= 1
    file.write_bytes(data)
    return path, other


def test_only_a_full_reading_tells_an_edit_in_place(edited):
    path, other = edited
    assert fingerprint(path) == fingerprint(other)
    full, changed = fingerprint(path, "full"), fingerprint(other, "full")
    assert full["config"] == changed["config"] and full["weights"] != changed["weights"]
    assert not set(full.values()) & set(fingerprint(path).values())


def test_names_tell_which_files_are_read(tmp_path):
    """A model may be moved, and a GGUF file have any name; in a directory another file is read under another name."""
    path = save("llama", tmp_path)
    before = fingerprint(path)
    path = path.rename(tmp_path / "moved")
    assert fingerprint(path) == before
    (path / "model.safetensors.index.json").write_text("{}")
    assert fingerprint(path)["weights"] != before["weights"]
    (path / "model.safetensors.index.json").unlink()
    (path / "model.safetensors").rename(path / "another.safetensors")
    assert fingerprint(path)["weights"] != before["weights"]
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"the same")
    assert fingerprint(tmp_path / "a.gguf") == fingerprint(tmp_path / "b.gguf")


def test_a_session_of_the_model_before_the_edit_is_refused(edited, tmp_path):
    path, other = edited
    load(path, fingerprint="full").session(prompt(9)).save(tmp_path / "x.kv")
    with pytest.raises(SnapshotError, match="fingerprint: weights 'full "):
        load(other, fingerprint="full").open_session(tmp_path / "x.kv")
    with pytest.raises(SnapshotError, match="fingerprint: "):
        load(path).open_session(tmp_path / "x.kv")
    assert len(load(path, fingerprint="full").open_session(tmp_path / "x.kv")) == 9


def test_the_setting_is_checked():
    with pytest.raises(ConfigError, match="fingerprint = 'half' is not allowed: use one of sampled, full"):
        load("nothing", fingerprint="half")
