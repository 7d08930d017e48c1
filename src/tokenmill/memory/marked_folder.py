"""Folders of unfinished work: each has a file that says what it is for, and no other folder is deleted."""

import os
import re
from pathlib import Path

from tokenmill.memory.atomic_file import TEMPORARY, beside, seal, unseal

__all__ = ["is_marked", "make_marked", "remove_marked"]

MARK, FORMAT = ".tokenmill", 1


def make_marked(folder: Path, what: str) -> None:
    """Make a folder for that purpose, with its mark, at once. Leaves alone whatever has that name already; OSError."""
    if os.path.lexists(folder):
        return
    new = beside(folder)
    new.mkdir()
    try:
        (new / MARK).write_text(seal({"folder": what}, FORMAT), encoding="utf-8")
        new.rename(folder)
    except OSError:
        (new / MARK).unlink(missing_ok=True)
        new.rmdir()
        if not os.path.lexists(folder):  # otherwise another process was faster
            raise


def is_marked(folder: Path, what: str) -> bool:
    """Whether `make_marked` has made it, for that purpose."""
    try:
        return unseal((folder / MARK).read_bytes(), FORMAT).get("folder") == what
    except (OSError, ValueError):
        return False


def remove_marked(folder: Path, what: str, names: re.Pattern[str]) -> list[str]:
    """Delete the files of such names in it, and then the folder; names of what else is in it, with which it stays."""
    if not is_marked(folder, what):
        return []
    others = []
    for path in folder.iterdir():
        temporary = TEMPORARY.fullmatch(path.name)
        if names.fullmatch(temporary[1] if temporary else path.name) and path.is_file():
            path.unlink(missing_ok=True)
        elif path.name != MARK:
            others.append(path.name)
    if not others:
        (folder / MARK).unlink(missing_ok=True)
        folder.rmdir()
    return sorted(others)
