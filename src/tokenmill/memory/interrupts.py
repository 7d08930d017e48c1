"""Ctrl-C is held while a library is called that would make another error of it, and raised when the call is over.

numpy, if it is interrupted while it is imported, swallows the interrupt, and torch may be left half imported.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Note SIGINT inside, and call its own handler at the end. Only the main thread is ever interrupted."""
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
