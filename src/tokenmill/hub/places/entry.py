"""An entry of what lies on this machine: a model, or what is no model and why, with the place that it belongs to."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenmill.value_reader import folder_of_setting

OURS, HUB, OLLAMA, FOLDER = "tokenmill", "hub", "Ollama", "folder"
"""Origins that are more than the name of a program whose folder was read."""


@dataclass(frozen=True)
class FoundModel:
    """name: what `--model` takes. path: what a loader opens; None where there is no model. files: all that lie there.

    origin: whose place it is: tokenmill, hub, Ollama, LM Studio, llama.cpp or folder. problem: why there is no model.
    note: what else is to be said. commit: of a repository of the hub. elsewhere: how one deletes it where it belongs;
    empty where `tokenmill rm` does.
    """

    name: str
    origin: str
    place: Path
    path: Path | None = None
    files: tuple[Path, ...] = ()
    problem: str = ""
    note: str = ""
    commit: str = ""
    elsewhere: str = ""

    @property
    def num_bytes(self) -> int:
        """The size on disk: a file that has several names counts once."""
        return sum(size for _, size in self.inodes())

    def inodes(self) -> set[tuple[tuple[int, int], int]]:
        """The device and inode of each file, with its size; without those that are gone."""
        found = set()
        for file in self.files:
            try:
                status = file.stat()
            except OSError:
                continue
            found.add(((status.st_dev, status.st_ino), status.st_size))
        return found


def reason_of(error: OSError) -> str:
    """What the system says, without the path, which the entry has."""
    return error.strerror or str(error)


@contextmanager
def told_by(tell: Callable[[str], None]) -> Iterator[None]:
    """What the system refuses inside is told as a problem, and what comes after goes on."""
    try:
        yield
    except OSError as error:
        tell(f"cannot be read: {reason_of(error)}")


def folder_of(variable: str, *usual: str) -> list[Path]:
    """The folder that an environment variable names, or else those below the home folder that are usual."""
    if given := os.environ.get(variable):
        return [folder_of_setting(given, variable)]
    return [Path.home() / each for each in usual]


def is_folder(path: Path) -> bool:
    """Whether there is a folder; one above which nothing may be read counts as one, so that it is told."""
    try:
        return path.is_dir()
    except OSError:
        return True


def real_path(path: Path) -> Path:
    """Where a path leads; its own links are followed, as far as they can be."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # RuntimeError: a link that leads to itself, before Python 3.13
        return path


def shown(path: Path) -> str:
    """A path as one types it: with ~ for the home folder, where a shell understands that."""
    text, home = str(path), f"{Path.home()}/"
    return f"~/{text.removeprefix(home)}" if text.startswith(home) and " " not in text else text
