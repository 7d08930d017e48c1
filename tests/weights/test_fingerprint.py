"""Digests of a model's files: samples miss what an edit in place leaves between them, a full reading does not."""

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.tiny_models import prompt, save
from tokenmill import load
from tokenmill.errors import CheckpointError, ConfigError, SnapshotError
from tokenmill.weights import fingerprint as module
from tokenmill.weights.fingerprint import files_of, fingerprint, is_full


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


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


NOTHING = sha256()


def test_what_is_read_of_a_file(tmp_path, monkeypatch):
    """Size, head, and two pages of the rest, which begin at 10 and at 10 + (25 - 10) / 2."""
    monkeypatch.setattr(module, "HEAD", 10)
    monkeypatch.setattr(module, "PAGE", 3)
    monkeypatch.setattr(module, "PAGES", 2)
    data = bytes(range(25))
    (tmp_path / "b.safetensors").write_bytes(data)
    (tmp_path / "a.bin").write_bytes(data[:10])
    expected = sha256(b"a.bin 10\n", data[:10], b"b.safetensors 25\n", data[:10], data[10:13], data[17:20])
    assert fingerprint(tmp_path) == {"config": NOTHING, "weights": expected, "tokenizer": NOTHING}
    whole = sha256(b"a.bin 10\n", data[:10], b"b.safetensors 25\n", data)
    told = {
        part: f"full {digest}" for part, digest in {"config": NOTHING, "weights": whole, "tokenizer": NOTHING}.items()
    }
    assert fingerprint(tmp_path, "full") == told
    assert is_full(told) and not is_full(fingerprint(tmp_path)) and not is_full({})
    assert is_full({"a": NOTHING, "b": f"full {NOTHING}"})
    (tmp_path / "x.gguf").write_bytes(data)
    assert fingerprint(tmp_path / "x.gguf") == {"weights": sha256(b".gguf 25\n", data[:10], data[10:13], data[17:20])}


def test_the_samples_of_a_large_file_are_the_first_8_mib_and_256_pages(tmp_path):
    """Sessions that were saved hold these digests, so that other samples would refuse all of them."""
    size = (8 << 20) + 256 * 5000
    file = tmp_path / "x.gguf"
    with file.open("wb") as out:
        for page in range(size // 4096 + 1):
            out.write(page.to_bytes(4, "big") * 1024)
        out.truncate(size)
    data = file.read_bytes()
    pages = [data[(8 << 20) + 5000 * i :][:4096] for i in range(256)]
    assert fingerprint(file) == {"weights": sha256(f".gguf {size}\n".encode(), data[: 8 << 20], *pages)}


def test_files_are_found_by_their_names(tmp_path):
    names = """config.json generation_config.json quantize_config.json model.safetensors x.bin a.index.json
        tokenizer.model tokenizer_config.json vocab.json merges.txt special_tokens_map.json chat_template.jinja
        README.md x.py""".split()
    for name in names:
        (tmp_path / name).write_text(name)
    (tmp_path / "additional_chat_templates").mkdir()
    for name in ("tool.jinja", "notes.txt", "x.bin"):
        (tmp_path / "additional_chat_templates" / name).write_text("x")
    (tmp_path / "folder.bin").mkdir()
    found = {part: [file.name for file in files] for part, files in files_of(tmp_path).items()}
    assert found == {
        "config": ["config.json", "generation_config.json", "quantize_config.json"],
        "weights": ["a.index.json", "model.safetensors", "x.bin"],
        "tokenizer": [
            *("chat_template.jinja", "merges.txt", "special_tokens_map.json"),
            *("tokenizer.model", "tokenizer_config.json", "vocab.json", "tool.jinja"),
        ],
    }
    assert files_of(tmp_path / "x.bin") == {"weights": [tmp_path / "x.bin"]}
    assert files_of(tmp_path / "nothing") == {"config": [], "weights": [], "tokenizer": []}
    assert fingerprint(tmp_path / "nothing") == dict.fromkeys(("config", "weights", "tokenizer"), NOTHING)


def test_a_link_to_a_file_is_one_and_a_link_to_nothing_is_refused(tmp_path):
    (tmp_path / "blob").write_bytes(b"data")
    (tmp_path / "model.bin").symlink_to("blob")
    assert files_of(tmp_path)["weights"] == [tmp_path / "model.bin"]
    assert fingerprint(tmp_path)["weights"] == sha256(b"model.bin 4\ndata")
    (tmp_path / "blob").unlink()
    with pytest.raises(CheckpointError, match=r"model.bin is a link to blob, which does not exist$"):
        files_of(tmp_path)


def test_what_cannot_be_read_is_said(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"data")

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(CheckpointError, match=r"x.gguf cannot be read: Permission denied"):
        fingerprint(tmp_path / "x.gguf")


def test_a_named_template_is_a_part_of_the_tokenizer(tmp_path):
    folder = tmp_path / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool.jinja").write_text("{{ 1 }}")
    before = fingerprint(tmp_path)
    (folder / "tool.jinja").write_text("{{ 2 }}")
    after = fingerprint(tmp_path)
    assert after["tokenizer"] != before["tokenizer"] and after["weights"] == before["weights"]
    (folder / "tool.jinja").unlink()
    (folder / "tool.jinja").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match=r"tool.jinja is a link to nowhere, which does not exist$"):
        files_of(tmp_path)
