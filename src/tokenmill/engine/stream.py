"""A stream of pieces, read with `for` in a thread or with `async for` in an event loop.

Steps are made while somebody waits for the next piece. An event loop waits in a thread of its executor.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager as AsyncContextManager
from contextlib import AbstractContextManager as ContextManager
from inspect import GEN_CLOSED, GEN_RUNNING, getgeneratorstate

from tokenmill.engine.outputs import Piece
from tokenmill.engine.thread import EngineThread


class Stream(Iterator[Piece], AsyncIterator[Piece], ContextManager["Stream"], AsyncContextManager["Stream"]):
    """Made by Engine.stream and Session.stream. Closed, by name or as a context, it ends its sequences."""

    def __init__(self, pieces: Generator[Piece, None, None], cancel: Callable[[], None], thread: EngineThread) -> None:
        """`cancel` lets a thread that waits for the next piece stop waiting. thread: which makes the steps."""
        self._pieces, self._cancel, self._thread = pieces, cancel, thread
        self._lock = threading.RLock()  # a generator must not be closed while another thread is within it

    def __next__(self) -> Piece:
        with self._lock:
            return next(self._pieces)

    def close(self) -> None:
        """End the sequences and release their blocks. What was read stays valid.

        A thread that waits for the next piece meanwhile gets RequestError after the step that is being made.
        """
        self._cancel()
        if self._lock.acquire(blocking=not self._thread.is_current):  # an observer must not wait for who waits for it
            try:
                if getgeneratorstate(self._pieces) != GEN_RUNNING:  # else a signal handler interrupts its reader
                    self._pieces.close()
            finally:
                self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<tokenmill.Stream {'ended' if getgeneratorstate(self._pieces) == GEN_CLOSED else 'open'}>"

    async def __anext__(self) -> Piece:
        try:
            if (piece := await asyncio.to_thread(next, self, None)) is not None:
                return piece
        except BaseException:  # a task that is cancelled leaves its thread within the step
            await self.aclose()
            raise
        raise StopAsyncIteration

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the stream; it waits for a step that is being made."""
        await asyncio.to_thread(self.close)
