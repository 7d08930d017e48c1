"""Threads with room for llguidance to compile in: it follows rules and references on its stack, where a few thousand,
one in the other, would end the process with the stack of other threads.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from tokenmill.errors import RequestError

T = TypeVar("T")
STACK = 1 << 30
"""Bytes of addresses; memory is taken of those that are used. A level of rules takes 4 KiB, one of a schema up to 20,
and as many as are in 512 KiB of text have to fit."""

_lock = threading.Lock()


def begin(make: Callable[[], T]) -> tuple[Future[T], threading.Thread]:
    """Begin to call a function in a thread of its own: what it will return or raise, and the thread."""
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(make())
        except Exception as error:  # noqa: BLE001  (it is raised where it is waited for)
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="compile a constraint", daemon=True)
    with _lock:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        except RuntimeError as error:  # as where the memory of processes is limited
            raise RequestError(f"a constraint needs {STACK >> 20} MiB of addresses to compile in: {error}") from None
        finally:
            threading.stack_size(before)
    return outcome, thread


def with_room(make: Callable[[], T]) -> T:
    """What a function returns or raises that is called in such a thread."""
    outcome, _ = begin(make)
    return outcome.result()
