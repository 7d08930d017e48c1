"""The transaction of a step: a context that restores the core's invariants after a Ctrl-C, or after two.

It stands inside the core's lock: `with core.lock, core.transaction:`. The two are not one, because only a context that
is written in C, as the lock is, is entered and left without a Ctrl-C coming between. A second Ctrl-C may leave a
transaction before it has restored anything; the next one notices, because the frame that opened it is gone.
"""

import sys
from collections.abc import Callable
from types import FrameType

from tokenmill.errors import RequestError, TokenmillError

__all__ = ["Transaction"]


class Transaction:
    """begin: called at each beginning. recover: restores the invariants; it may be interrupted and called again.

    is_stepping: set in the midst of a step, when no other transaction may begin: in the same thread that would be one
    of a signal handler or of an observer.
    """

    def __init__(self, begin: Callable[[], None], recover: Callable[[], None]) -> None:
        self._begin, self._restore = begin, recover
        self._frames: list[FrameType] = []  # that have opened a transaction, outermost first
        self.is_stepping = self._is_broken = False

    def recover(self) -> None:
        """Restore the invariants, now or, if that is interrupted, when the next transaction begins."""
        self._is_broken = True
        self._restore()
        self.is_stepping = self._is_broken = False

    def __enter__(self) -> None:
        frame = sys._getframe(1)
        while self._frames and not _is_within(frame, self._frames[-1]):
            self._is_broken = True
            self._frames.pop()
        if self._is_broken:
            self.recover()
        if self.is_stepping:
            raise RequestError("a step is being made: a signal handler or an observer cannot use the engine now")
        self._frames.append(frame)
        try:
            self._begin()
        except BaseException:
            self.recover()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, TokenmillError):  # which is a refusal, and changes nothing
            self.recover()
        self._frames.pop()


def _is_within(frame: FrameType | None, outer: FrameType) -> bool:
    """Whether a frame is another one, or was called by it."""
    while frame is not None and frame is not outer:
        frame = frame.f_back
    return frame is not None
