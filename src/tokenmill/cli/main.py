"""The command `tokenmill`: every error as one line and an exit code.

Exit codes: 0, 2 for what the user can put right, 130 for Ctrl-C, 1 for a text that a benchmark finds wrong, and 1 with
a traceback for a bug of ours. A reader that goes away (`| head -1`) has got what it wanted: 0.
"""

import gc
import os
import sys
import threading

from tokenmill.cli.parser.verbs import run_words
from tokenmill.cli.process.display import remark
from tokenmill.cli.process.streams import Unwritable, prepare_streams, silence_stdout
from tokenmill.errors import RankLost, TokenmillError, WrongText


def main(arguments: list[str]) -> int:
    """Run one verb; returns the exit code."""
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
    except SystemExit as done:  # of a verb that has said why
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
    """The whole command: arguments, streams, exit code."""
    prepare_streams()
    gc.set_threshold(50_000)  # torch alone makes a million objects that live on: looking at them again costs 0.1 s
    code = main(sys.argv[1:])
    if threading.active_count() > 1:  # something is still compiled in the background, for nobody
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
