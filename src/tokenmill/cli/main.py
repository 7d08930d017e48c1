"""The command `tokenmill`: every error as one line and an exit code.

Exit codes: 0, 2 for what the user can put right, 130 for Ctrl-C, 1 for a text that a benchmark finds wrong, and 1 with
a traceback for a bug of ours. A reader that goes away (`| head -1`) has got what it wanted: 0.
"""

import gc
import io
import os
import sys
import threading
import warnings
from typing import Any

from tokenmill.cli.parser.verbs import run_words
from tokenmill.cli.process.display import remark, show_logged
from tokenmill.errors import RankLost, TokenmillError, WrongText


def main(arguments: list[str]) -> int:
    """Run one verb, and return the exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        return 0
    except Unwritable as error:
        silence_stdout()
        return _refuse(str(error))
    except OSError as error:  # a name that is too long, or lies in a folder that may not be searched
        if not isinstance(error.filename, str):
            raise
        return _refuse(f"{error.filename} cannot be used: {error.strerror}")
    return code


def _run(arguments: list[str]) -> int:
    try:
        run_words(arguments)
    except SystemExit as done:  # a verb raises it that has said why
        return int(done.code or 0)
    except (WrongText, RankLost) as error:
        _refuse(str(error))
        return 1
    except TokenmillError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    return 0


def _refuse(message: str) -> int:
    remark(f"error: {' '.join(message.split())}")
    return 2


def run() -> None:
    """Run the whole command: streams, arguments, exit code."""
    prepare_streams()
    gc.set_threshold(50_000)  # torch alone makes a million objects that live on: looking at them again costs 0.1 s
    code = main(sys.argv[1:])
    if threading.active_count() > 1:  # something is still compiled in the background, for nobody
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


# ---- the standard streams, also where they are closed or full


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
    """Show a warning without the line of source code that warnings.showwarning adds."""
    show_logged(" ".join(str(message).split()))
