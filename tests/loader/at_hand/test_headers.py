"""Headers that were read once are not read again, unless the files have changed."""

import json
import os

import pytest

from tests import gguf_files
from tests.tiny_models import save
from tokenmill.hub.download import cache_folder
from tokenmill.loader.at_hand import headers, models
from tokenmill.loader.at_hand.facts import facts_of
from tokenmill.loader.at_hand.headers import FILE, KnownHeaders

KIND = gguf_files.KIND


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(headers, "SETTLED_S", -1.0)  # the files are new
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "models"
    folder.mkdir()
    made = [gguf_files.write(folder / f"{kind.name}.gguf", "llama", kind) for kind in (KIND.F16, KIND.Q4_0)]
    return [*made, save("qwen2", tmp_path)]


def read(paths):
    known = KnownHeaders()
    found = [facts_of(path, known) for path in paths]
    known.save()
    return found


def test_they_are_the_same_the_second_time_and_no_file_is_opened(files, monkeypatch):
    before = read(files)
    assert len({facts.quantization for facts in before}) == 3
    monkeypatch.setattr(headers, "open_checkpoint", None)
    assert read(files) == before


@pytest.mark.parametrize(
    "changed", ["file", "version", "{", "[]", "5", "null", "[" * 100_000, '{"facts": {}}', "numbers"]
)
def test_they_are_read_again_when_something_changed(changed, files, monkeypatch):
    before, kept = read(files), cache_folder() / FILE
    if changed == "file":
        gguf_files.write(files[0], "llama", KIND.Q8_0)
    elif changed == "version":
        monkeypatch.setattr(headers, "__version__", "another")
    else:
        text = kept.read_text(encoding="utf-8").replace("num_parameters", "num_others")
        kept.write_text(text if changed == "numbers" else changed, encoding="utf-8")
    opened = []
    monkeypatch.setattr(headers, "open_checkpoint", lambda path: opened.append(path) or headers_of(path))
    after = read(files)
    assert opened == (files[:1] if changed == "file" else files)
    assert (after[0].quantization == "Q8_0") == (changed == "file") and after[1:] == before[1:]


headers_of = headers.open_checkpoint


def test_models_that_are_gone_are_forgotten(files):
    read(files)
    files[0].unlink()
    gguf_files.write(files[1], "llama", KIND.Q8_0)
    read(files[1:])
    kept = json.loads((cache_folder() / FILE).read_text(encoding="utf-8"))["facts"]["headers"]
    assert sorted(kept) == sorted(map(str, files[1:]))


def test_a_file_that_may_change_within_a_tick_of_the_clock_is_not_kept(files, monkeypatch):
    monkeypatch.setattr(headers, "SETTLED_S", 1e9)
    read(files)
    assert not (cache_folder() / FILE).exists()


def test_a_folder_that_cannot_be_written_is_no_error(files, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "file"))
    assert read(files)


def test_many_equal_files_are_read_once_each_and_paired_with_the_first(files, monkeypatch):
    """The pairs grow with the files, and not with their square."""
    for number in range(9):
        (files[0].parent / f"copy{number}.gguf").write_bytes(files[0].read_bytes())
    os.link(files[0], files[0].parent / "link.gguf")
    read_files = []
    digest = models.fingerprint
    monkeypatch.setattr(models, "fingerprint", lambda path: read_files.append(path) or digest(path))
    found = models.models_here([files[0].parent]).models
    pairs = [pair for pair in models.pairs_of(found) if "F16" in pair.first or "copy" in pair.first]
    assert len(pairs) == 9 and all(pair.is_same for pair in pairs) and len({pair.first for pair in pairs}) == 1
    assert len(read_files) == len(set(read_files)) == 11
