"""KeyboardInterrupt at a chosen line of our own code: an interrupt whose moment is certain."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import tokenmill

ROOMS = tuple(
    str(Path(tokenmill.__file__).parent / room) for room in ("engine", "schedule", "cache", "sample", "speculate")
)


class Lines:
    """Counts the lines that are run; raises at number `at`, once."""

    def __init__(self, at: int | None) -> None:
        self.at, self.count = at, 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> object:
        if not frame.f_code.co_filename.startswith(ROOMS):
            return None
        if event == "line" and frame.f_lineno not in BETWEEN[frame.f_code.co_filename]:
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


BETWEEN = {str(path): _between(path) for room in ROOMS for path in Path(room).rglob("*.py")}


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
