"""Ctrl-C is held while a library is called that would make another error of it, and raised when the call is over."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Inside, SIGINT is noted alone; its own handler is called at the end. Only the main thread is ever interrupted."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    noted: list[tuple[Any, ...]] = []
    try:
        signal.signal(signal.SIGINT, lambda *given: noted.append(given))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if noted:
            handler(*noted[0])
