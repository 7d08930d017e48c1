"""A command on a pseudo-terminal, for tests that type. Each line is typed when the prompt is there, never earlier."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

# The child makes the terminal its own, so that Ctrl-C there is a signal. SIGINT is set, since a test that runs in the
# background has it ignored.
BEGIN = """
import os, signal
os.close(os.open(os.ttyname(0), os.O_RDWR))
signal.signal(signal.SIGINT, signal.default_int_handler)
from tokenmill.cli import main
"""
PROMPT = r"(^|\n)> $"
LIMIT_S = 120
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """`prepare`: Python that runs in the child before the command."""

    def __init__(self, *arguments, prepare="", env=None):
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, 200))
        command = [sys.executable, "-c", f"{BEGIN}{prepare}\nmain.run()", *map(str, arguments)]
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        variables = os.environ | {"TERM": "xterm", "OMP_NUM_THREADS": "1"} | (env or {})
        self.process = subprocess.Popen(command, start_new_session=True, env=variables, **streams)
        os.close(theirs)
        self.shown = ""  # since something was typed last, without escape sequences
        self._bytes = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._ours)
        self.process.kill()
        self.process.wait()

    def _read(self, until_s):
        ready, _, _ = select.select([self._ours], [], [], max(until_s - time.monotonic(), 0))
        assert ready, f"nothing more came after {self.shown!r}"
        try:
            new = os.read(self._ours, 65536)
        except OSError:  # the child has ended
            new = b""
        self._bytes += new
        self.shown = ESCAPES.sub("", self._bytes.decode(errors="ignore")).replace("\r", "")
        return bool(new)

    def wait(self, pattern):
        """The text that is shown, once the pattern is in it."""
        until_s = time.monotonic() + LIMIT_S
        while not re.search(pattern, self.shown):
            assert self._read(until_s), f"it ended, and {pattern!r} is not in {self.shown!r}"
        return self.shown

    def send(self, text):
        """Type at once."""
        self._bytes, self.shown = b"", ""
        os.write(self._ours, text.encode())

    def interrupt(self):
        """Ctrl-C, once the child waits for input: readline would not notice a signal that came just before that."""
        stat = f"/proc/{self.process.pid}/stat"
        until_s = time.monotonic() + LIMIT_S
        while Path(stat).read_text().rpartition(")")[2].split()[0] != "S":
            assert time.monotonic() < until_s, "the child never waits"
            time.sleep(0.01)
        self.send("\x03")

    def type(self, text, prompt=PROMPT):
        """Type a line when the prompt is there; what was shown before."""
        shown = self.wait(prompt)
        self.send(f"{text}\r")
        return shown

    def end(self):
        """The text that is shown last, and the exit code."""
        until_s = time.monotonic() + LIMIT_S
        while self._read(until_s):
            pass
        return self.shown, self.process.wait(LIMIT_S)
