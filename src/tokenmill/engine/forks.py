"""A process is forked when the threads of all its engines stand between two steps; the child has threads of its own.

So neither a step nor a function of an engine is half done in the child.
"""

import _thread
import os
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol
from weakref import WeakSet

FORK_WAITS_S = 0.002  # for which an engine's thread sleeps before a step while another thread wants to fork
INTERRUPTED_AFTER_S = 0.02  # so that the hooks of the fork are over


class Forked(Protocol):
    """The thread of an engine, as a fork uses it. turn: an RLock, which is held while a step or a function runs."""

    turn: Any

    @property
    def is_current(self) -> bool:
        """Whether this is asked in that thread."""

    def begin_anew(self) -> None:
        """Begin anew in the child."""

    def quit(self) -> None:
        """End before the interpreter does."""


threads: "WeakSet[Forked]" = WeakSet()
"""The threads of all engines of this process."""
forking: list[int] = []
"""The threads that want to fork."""

_interrupts: list[bool] = []  # not empty after a Ctrl-C while a fork waited for steps to end


def is_forking() -> bool:
    """Whether this is asked in a thread between the hooks of its fork, as by the handler of a signal."""
    return threading.get_ident() in forking


def give_way() -> None:
    """Sleep a moment if another thread wants to fork: an RLock is not fair, so that thread might never get it."""
    if forking:
        time.sleep(FORK_WAITS_S)


def hold_all() -> None:
    """Hold the turn of every thread. A Ctrl-C while they are waited for comes again after the fork: what a hook raises
    is lost, and the fork would be made in the midst of a step.
    """
    ident = threading.get_ident()
    while True:
        try:
            if ident not in forking:
                forking.append(ident)
            if _hold():
                return
        except KeyboardInterrupt:
            _interrupts.append(True)


def _hold() -> bool:
    """Hold all turns, or none while another is waited for, which may wait for that one itself; whether all are held."""
    for each in _others():
        if not each.turn._is_owned() and not each.turn.acquire(blocking=False):
            _release_all()
            with each.turn:
                return False
    return True


def _others() -> list[Forked]:
    """List all threads but the one that asks, which has its turn."""
    while True:
        with suppress(RuntimeError):  # another was made meanwhile
            return [each for each in list(threads) if not each.is_current]


def _release_all() -> None:
    for each in _others():
        if each.turn._is_owned():
            each.turn.release()


def let_all_go() -> None:
    """Release all turns, and have a Ctrl-C come that came meanwhile."""
    _release_all()
    ident = threading.get_ident()
    with suppress(ValueError):  # interrupted before it was noted
        forking.remove(ident)
    if _interrupts:
        _interrupts.clear()
        threading.Timer(INTERRUPTED_AFTER_S, _interrupt, [ident]).start()


def _interrupt(ident: int) -> None:
    """Interrupt the main thread once the thread that forked has left the hook, in which the interrupt would be lost."""
    while _is_letting_go(sys._current_frames().get(ident)):
        time.sleep(INTERRUPTED_AFTER_S)
    time.sleep(INTERRUPTED_AFTER_S)
    _thread.interrupt_main()


def _is_letting_go(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not let_all_go.__code__:
        frame = frame.f_back
    return frame is not None


def _begin_all_anew() -> None:
    forking.clear()
    _interrupts.clear()
    for each in list(threads):
        each.begin_anew()


os.register_at_fork(before=hold_all, after_in_parent=let_all_go, after_in_child=_begin_all_anew)
