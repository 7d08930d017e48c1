"""A folder in which the commands of a page run, and the shell that runs them as they are written."""

import io
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import redirect_stdout

import pytest

from tests.book.blocks import SERVED, TYPED, Block
from tests.book.command_lines import CommandLines
from tests.book.markdown import ROOT
from tests.ports import unused_port

ADDRESS, PORT = "127.0.0.1:8000", "8000"


class Shell:
    """Runs the blocks of a page one after the other in a folder, as somebody would who reads it from its beginning.

    A server listens at a port of its own, and what the page says of port 8000 is about that.
    """

    def __init__(self, line: CommandLines, port: int) -> None:
        self.line, self.port = line, port
        self.server: subprocess.Popen[bytes] | None = None
        self.lines: list[str] = []
        self.printed: list[str] = []

    def run(self, block: Block, following: Block | None, apart: bool = False) -> None:
        """Run a block. following: the block after it, whose lines may be typed into its last command.

        apart: a line that is repeated, or goes on from a file, runs in another process than what was before it.
        """
        if block.mark == SERVED:
            self.serve(block.commands[0])
        elif block.language == "python":
            with redirect_stdout(io.StringIO()) as printed:
                exec(compile(self.at_port(block.text), "page", "exec"), {})
            self.printed.append(printed.getvalue())
        elif block.is_shell:
            for number, line in enumerate(block.commands, start=1):
                is_last = number == len(block.commands)
                typed = following.text if is_last and following and following.mark == TYPED else ""
                if line.startswith("make "):
                    self.make(line)
                elif not line.startswith("curl ") or shutil.which("curl"):
                    goes_on = line in self.lines or line.startswith("tokenmill decode ")
                    by = self.line.as_process if apart and goes_on else self.line
                    self.printed.append(by(self.at_port(line), typed))
                    self.lines.append(line)

    def make(self, line: str) -> None:
        """Run a make target in the repository, if that has an environment: tests make none."""
        if (ROOT / ".venv" / ".ready").is_file():
            done = subprocess.run(line.split(), cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{line}: {done.stderr}"

    def at_port(self, text: str) -> str:
        """The text with the address of our server."""
        return text.replace(ADDRESS, f"127.0.0.1:{self.port}").replace(f"localhost:{PORT}", f"localhost:{self.port}")

    def serve(self, line: str) -> None:
        """Start a server, by make without what that installs first, and wait until it takes requests."""
        if line.startswith("make "):
            recipe = re.search(rf"^{line.split()[1]}:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
            line = recipe[1].replace("$(BIN)/", "").replace("$(ARGS)", "")
        self.server = subprocess.Popen([*line.split(), "--port", str(self.port)], cwd=self.line.folder)
        while self.server.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready"):
                    return
            except urllib.error.URLError:
                time.sleep(0.05)
        raise AssertionError(f"{line} ended with {self.server.returncode}")

    def close(self) -> None:
        """End the server as Ctrl-C does; it must end well."""
        if self.server is not None:
            self.server.send_signal(signal.SIGINT)
            assert self.server.wait(60) in (0, 130)


@pytest.fixture
def shell(tmp_path, tm, monkeypatch, real_model):
    """`tokenmill` is on the path, and the model is fetched already. The cache is that of all tests, see users_cache."""
    programs = tmp_path / "bin"
    programs.mkdir()
    script = f'#!/bin/sh\nexec "{sys.executable}" -m tokenmill "$@"\n'
    (programs / "tokenmill").write_text(script)
    (programs / "tokenmill").chmod(0o755)
    monkeypatch.setenv("TOKENMILL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copy(ROOT / "README.md", folder)
    (folder / "phrases.csv").write_text("id,text\n1,Good morning.\n2,Where is the mill?\n")
    made = Shell(CommandLines(folder, tm, monkeypatch), unused_port())
    yield made
    made.close()
