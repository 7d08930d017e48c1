"""Command lines of pages, as they are written. A process that imports torch takes three seconds before its first token,
so a line whose way through a shell would prove nothing more runs in this process.
"""

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
"""What a shell hands on as it stands."""
NEEDS_A_SHELL = set("|<>&;$`*?~(")


class Done(NamedTuple):
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


class CommandLines:
    """Runs lines in a folder. tm: the fixture that runs one command line in this process."""

    def __init__(self, folder: Path, tm: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.tm, self.monkeypatch = folder, tm, monkeypatch
        monkeypatch.chdir(folder)

    def __call__(self, line: str, typed: str = "") -> str:
        """What a line prints, which must succeed. typed: what comes on its stdin."""
        done = self.ended(line, typed)
        assert done.stdout or done.stderr or not self._words(line), line
        return self._successful(line, done)

    def as_process(self, line: str, typed: str = "") -> str:
        """The same, by a shell whatever the line says: a process of its own goes on from what another one has kept."""
        return self._successful(line, self._by_shell(line, typed))

    def ended(self, line: str, typed: str = "") -> Done:
        """What a line left, which may fail."""
        if not (words := self._words(line)):
            return self._by_shell(line, typed)
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed.encode())))
        return Done(*self.tm(*words))

    @staticmethod
    def _words(line: str) -> list[str]:
        """The words after tokenmill; none where a shell does more than to call it with them."""
        words, bare = shlex.split(line, comments=True), QUOTED.sub("", line).partition(" #")[0]
        return words[1:] if words[0] == "tokenmill" and not NEEDS_A_SHELL & set(bare) else []

    def _by_shell(self, line: str, typed: str) -> Done:
        command = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(command, cwd=self.folder, input=typed, capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    @staticmethod
    def _successful(line: str, done: Done) -> str:
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert "Traceback" not in done.stderr, line
        return done.stdout
