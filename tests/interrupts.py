"""KeyboardInterrupt at a chosen line of our own code, or of contextlib: an interrupt whose moment is certain."""

import contextlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType

import tokenmill

ROOMS = tuple(Path(tokenmill.__file__).parent / room for room in ("engine", "schedule", "cache", "sample", "speculate"))
TEXT = Path(tokenmill.__file__).parent / "text" / "detokenize.py"
FILES = [Path(contextlib.__file__), TEXT, *(path for room in ROOMS for path in room.rglob("*.py"))]


class Lines:
    """Counts the functions that are entered and the lines that are run; raises at number `at`, once."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> object:
        if frame.f_code.co_filename not in BETWEEN:
            return None
        begins = event == "call" and not frame.f_code.co_flags & CO_GENERATOR  # one of those may be being closed
        if begins or (event == "line" and frame.f_lineno not in BETWEEN[frame.f_code.co_filename]):
            self.count += 1
            if self.count == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def _between(path: Path) -> set[int]:
    """Lines at which Python lets no signal through: `try:`, `pass`, and `with`, which a block passes again at its end.

    What is raised there leaves locks held, because these lines are not inside of what closes them.
    """
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return {number for number, line in lines if line.strip() in ("try:", "pass") or line.strip().startswith("with ")}


BETWEEN = {str(path): _between(path) for path in FILES}


@contextmanager
def lines(at: int | None = None) -> Iterator[Lines]:
    """Inside, line number `at` of this thread is interrupted; without a number the lines are only counted."""
    counter = Lines(at)
    before = sys.gettrace()
    sys.settrace(counter)
    try:
        yield counter
    finally:
        sys.settrace(before)
