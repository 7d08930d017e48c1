"""Folders of unfinished work: each has a file that says what it is for, and no other folder is deleted."""

import os
import re
from pathlib import Path

from tokenmill.memory.atomic_file import beside, seal, unseal
from tokenmill.memory.bounded_folder import BoundedFolder

MARK, FORMAT = ".tokenmill", 1


class MarkedFolder(BoundedFolder):
    """A folder without limit. what: it is for, as its mark says. names: of the files that belong to it."""

    def __init__(self, root: Path, what: str, names: re.Pattern[str]) -> None:
        super().__init__(root, what, names, lambda _: self.is_marked())

    def make(self) -> None:
        """Make the folder with its mark, at once. Leaves alone whatever has that name already; OSError."""
        if os.path.lexists(self.root):
            return
        new = beside(self.root)
        new.mkdir()
        try:
            (new / MARK).write_text(seal({"folder": self._what}, FORMAT), encoding="utf-8")
            new.rename(self.root)
        except OSError:
            (new / MARK).unlink(missing_ok=True)
            new.rmdir()
            if not os.path.lexists(self.root):  # otherwise another process was faster
                raise

    def is_marked(self) -> bool:
        """Whether `make` has made the folder, for the same."""
        try:
            return unseal((self.root / MARK).read_bytes(), FORMAT).get("folder") == self._what
        except (OSError, ValueError):
            return False

    def remove(self) -> list[str]:
        """Delete the folder and the files that belong to it; names of what else is in it, with which it stays."""
        if not self.is_marked():
            return []
        for file in [*self.files(), *self.begun()]:
            file.path.unlink(missing_ok=True)
        others = sorted(path.name for path in self.root.iterdir() if path.name != MARK)
        if not others:
            (self.root / MARK).unlink(missing_ok=True)
            self.root.rmdir()
        return others
