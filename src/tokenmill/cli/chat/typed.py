"""The lines typed or piped into `tokenmill chat`, as messages and commands, with their history.

A message is one line, unless a backslash at its end continues it, three quotes open a block, or a block of several
lines is pasted. A command is `/word` on one line; `/usr/bin` begins a message.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from tokenmill.cli.process.display import remark
from tokenmill.errors import RequestError

Read = Callable[[str], str]
"""Shows a prompt and gives the next line. Raises EOFError at the end of the input."""

PROMPT, MORE, QUOTES = "> ", "... ", '"""'
STDOUT = 1  # the number of its file
MAX_HISTORY = 1000  # lines

_COMMAND = re.compile(r"/(?P<name>\w*|\?)(?:\s+(?P<argument>.*))?", re.DOTALL)
_TAKES_LINES = ("system",)  # commands whose argument may have several lines


@dataclass(frozen=True)
class Typed:
    """A message; or a command with what follows its name, and `text` as it was typed."""

    text: str
    command: str | None = None
    argument: str = ""


def read_typed(read: Read) -> Typed:
    """Read the next message or command. The end of the input ends an incomplete message; after it comes EOFError."""
    text = read(PROMPT)
    if text.lstrip().startswith(QUOTES):
        return Typed(_block(text.lstrip().removeprefix(QUOTES), read))
    while text.endswith("\\"):
        text = text.removesuffix("\\")
        line = _next_line(read)
        if line is None:
            break
        text += f"\n{line}"
    match = _COMMAND.fullmatch(text)
    if match is None or ("\n" in text and match["name"] not in _TAKES_LINES):
        return Typed(text.strip("\n"))
    return Typed(text, match["name"].lower(), (match["argument"] or "").strip())


def _block(text: str, read: Read) -> str:
    """Read the text between three quotes and the next three at the end of a line."""
    while not text.rstrip().endswith(QUOTES):
        line = _next_line(read)
        if line is None:
            return text
        text += f"\n{line}"
    return text.rstrip().removesuffix(QUOTES).strip("\n")


def _next_line(read: Read) -> str | None:
    try:
        return read(MORE)
    except EOFError:
        return None


@contextmanager
def from_pipe() -> Iterator[Read]:
    """Read lines from stdin, which is no terminal. RequestError for a line that is not UTF-8."""
    lines = enumerate(cast("Iterable[bytes]", sys.stdin.buffer), start=1)

    def read(_: str) -> str:
        for number, line in lines:
            try:
                return line.decode("utf-8" if number > 1 else "utf-8-sig").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError:
                raise RequestError(f"line {number} of the input is not valid UTF-8") from None
        raise EOFError

    yield read


@contextmanager
def from_terminal() -> Iterator[Read]:
    """Read lines with editing, and with the lines of earlier conversations at hand."""
    try:
        import readline  # it changes the terminal: only where lines are typed
    except ImportError:  # not on every system; lines are then typed without editing
        yield _read_line
        return
    readline.parse_and_bind("set enable-bracketed-paste on")  # a pasted block is then one line with line breaks in it
    readline.set_auto_history(True)
    is_kept = _read_history(readline)
    try:
        yield _read_line
    finally:
        if is_kept:
            _write_history(readline)


def _read_line(prompt: str) -> str:
    try:
        if sys.stdout.isatty():
            text = input(prompt)
        else:
            with _stdout_on_stderr():
                text = input(prompt)
        text.encode()
    except UnicodeError:
        raise RequestError("what was typed is not valid UTF-8: set the terminal's encoding to UTF-8") from None
    return text


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Let what `input` shows go where remarks go, and not among the answers. Lines are edited only on a terminal."""
    sys.stdout.flush()
    kept = os.dup(STDOUT)
    os.dup2(sys.stderr.fileno(), STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, STDOUT)
        os.close(kept)


def _read_history(readline: ModuleType) -> bool:
    """Read the history, and tell whether it may be written later."""
    with _history_file() as file:
        if file.exists():
            readline.read_history_file(file)
        return True
    return False


def _write_history(readline: ModuleType) -> None:
    with _history_file() as file:
        file.parent.mkdir(parents=True, exist_ok=True)
        readline.set_history_length(MAX_HISTORY)
        readline.write_history_file(file)


@contextmanager
def _history_file() -> Iterator[Path]:
    """Open a context with the file of earlier lines. A failure inside is a remark; the conversation goes on."""
    from tokenmill.hub.download import data_folder

    file = None
    try:
        file = data_folder() / "chat_history"
        yield file
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        reason = getattr(error, "strerror", None) or error
        remark(
            f"the lines that you typed are not kept: {file or 'the data folder'}: {reason}; set TOKENMILL_DATA to "
            "a folder that you can write to"
        )
