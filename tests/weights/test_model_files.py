"""The digests are those of sha256sum, and a file that changed is refused."""

import os
import subprocess

import pytest

from tokenmill import ReceiptError
from tokenmill.weights.fingerprint import OTHER_TOKENIZER, ModelFiles, difference


@pytest.fixture
def folder(tmp_path):
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (tmp_path / name).write_text(name * 1000)
    return tmp_path


def test_digests_are_those_of_sha256sum(folder):
    found = ModelFiles(folder).digests
    assert set(found) == {"config.json", "model.safetensors", "tokenizer.json"}
    said = subprocess.run(["sha256sum", *found], cwd=folder, capture_output=True, text=True, check=True).stdout
    assert said == "".join(f"{digest}  {name}\n" for name, digest in found.items())


def test_another_models_tokenizer(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    (other / "tokenizer.json").write_text("{}")
    (other / "model.safetensors").write_text("{}")
    assert set(ModelFiles(folder, other).digests) - set(ModelFiles(folder).digests) == {
        f"{OTHER_TOKENIZER}tokenizer.json"
    }
    (other / "x.gguf").write_text("GGUF")
    assert f"{OTHER_TOKENIZER}x.gguf" in ModelFiles(folder, other / "x.gguf").digests


def wait_for_another_time(probe):
    """Until a file that changes now has another time: before Linux 6.13 that was the one of the last tick."""
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.touch()


@pytest.mark.parametrize("how", ["changed", "replaced", "deleted"])
def test_a_file_that_changed_is_refused(folder, how):
    files, path = ModelFiles(folder), folder / "model.safetensors"
    wait_for_another_time(folder / "probe")
    before, times = path.read_bytes(), path.stat()
    if how == "changed":  # in place, and the time put back
        path.write_bytes(b"x" + before[1:])
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        path.unlink()
    if how == "replaced":
        path.write_bytes(before)
    assert files.have_changed and (how == "deleted" or not ModelFiles(folder).have_changed)
    with pytest.raises(ReceiptError, match=r"model\.safetensors"):
        files.digests  # noqa: B018


def test_digests_are_taken_once(folder):
    files = ModelFiles(folder)
    assert files.digests is files.digests


def test_differences_are_named():
    one, other = "1" * 64, "2" * 64
    assert difference({"a": one}, {"b": one}) is None
    assert difference({"a": one, "b": other}, {"a": one, "c": other}) is None
    assert difference({"a": one, "b": other}, {"a": other, "b": one}).count("has other contents") == 2
    assert (
        difference({"a": one}, {"b": other}) == "a has other contents: sha256 111111111111… claimed, 222222222222… here"
    )
    assert difference({"a": one, "b": one}, {"a": other, "c": one}) == (
        "b is not here; c is not in the receipt; a has other contents: sha256 111111111111… claimed, 222222222222… here"
    )
