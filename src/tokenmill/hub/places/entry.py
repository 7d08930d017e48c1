"""An entry of what lies on this machine: a model, or what is no model and why, with the place that it belongs to."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tokenmill.value_reader import folder_of_setting

OURS, HUB, OLLAMA, FOLDER = "tokenmill", "hub", "Ollama", "folder"
"""Origins that are more than the name of a program whose folder was read."""


@dataclass(frozen=True)
class FoundModel:
    """A model, or something that is no model. name: what `--model` takes. path: what a loader opens; None where there
    is no model. files: all files of it.

    origin: whose place it is: tokenmill, hub, Ollama, LM Studio, llama.cpp or folder. problem: why there is no model.
    note: what else is to be said. commit: of a repository of the hub. elsewhere: how one deletes it where it belongs;
    empty where `tokenmill rm` does. is_adapter: it is a directory of PEFT, which `--adapter` takes by its path; of a
    GGUF file its header tells.
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
    is_adapter: bool = False

    @property
    def num_bytes(self) -> int:
        """The size on disk: a file that has several names counts once."""
        return sum(size for _, size in self.inodes())

    @property
    def repository(self) -> str:
        """The repository of the hub, whose entries are owner/name, owner/name:file, owner/name/tree/commit or
        owner/name/blob/commit/file; of any other origin the name.
        """
        return re.split(r":|/tree/|/blob/", self.name)[0] if self.origin == HUB else self.name

    def inodes(self) -> set[tuple[tuple[int, int], int]]:
        """Return the device and inode of each file that is still there, with its size."""
        found = set()
        for file in self.files:
            try:
                status = file.stat()
            except OSError:
                continue
            found.add(((status.st_dev, status.st_ino), status.st_size))
        return found


def reason_of(error: OSError) -> str:
    """Return what the system says, without the path, which the entry has."""
    return error.strerror or str(error)


def folder_of(variable: str, *usual: str) -> list[Path]:
    """Return the folder that an environment variable names, else the usual folders below the home folder."""
    if given := os.environ.get(variable):
        return [folder_of_setting(given, variable)]
    return [Path.home() / each for each in usual]


def is_folder(path: Path) -> bool:
    """Tell whether there is a folder; a path above which nothing may be read counts as a folder, so that it is told."""
    try:
        return path.is_dir()
    except OSError:
        return True


def real_path(path: Path) -> Path:
    """Follow a path's own links, as far as they can be followed."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # RuntimeError: a link that leads to itself, before Python 3.13
        return path


def shown(path: Path) -> str:
    """Write a path as one types it: with ~ for the home folder, where a shell understands that."""
    text, home = str(path), f"{Path.home()}/"
    return f"~/{text.removeprefix(home)}" if text.startswith(home) and " " not in text else text
