"""The standard streams of the command when they are closed or full; warnings as one line."""

import io
import os
import sys
import warnings
from typing import Any

from tokenmill.cli.process.display import show_logged


class Unwritable(Exception):
    """Stdout is closed, or the device that it goes to is full. Not an error of the verb that wrote to it."""


def prepare_streams() -> None:
    """Put something in the place of streams that are closed, and have warnings take one line.

    A closed stderr costs nothing. Stdout, if it is closed or cannot be written, raises Unwritable at the first write.
    """
    # In this order: the lowest free number is given, so that no file which is opened later becomes a standard stream.
    for name, flags in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flags)
            setattr(sys, name, open(number, "w" if name == "stderr" else "r", encoding="utf-8"))  # noqa: SIM115, PTH123
    raw = _Stdout(sys.stdout.fileno(), "w", closefd=False)
    # A text may hold characters that the terminal's encoding has not: a "?" is better than to end in the middle.
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=sys.stdout.encoding,
        errors="replace",
        line_buffering=bool(sys.stdout.line_buffering),
    )
    warnings.showwarning = _show_warning  # type: ignore[assignment]


def silence_stdout() -> None:
    """Let what is still buffered go nowhere, or the interpreter complains about it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Stdout(io.FileIO):
    """File number 1."""

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]
        """Write as FileIO does. BrokenPipeError is left as it is: a reader that goes away has got what it wanted."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Unwritable(f"stdout cannot be written: {error.strerror}") from None


def _show_warning(message: Warning | str, *_: Any) -> None:
    """Replaces warnings.showwarning, which adds a line of source code."""
    show_logged(" ".join(str(message).split()))
