"""Requests of one core from asyncio: a thread makes the steps, and what is new of a request arrives in its event loop.

The event loop never waits for a step: it hands requests and cancellations to the thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Piece
from tokenmill.engine.requests import Request

__all__ = ["AsyncDriver"]

_Deliver = Callable[[Piece | BaseException | None], None]


class AsyncDriver:
    """Made for one core; its thread runs from the first request until `close`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._condition = threading.Condition()
        self._arrived: deque[tuple[Request, _Deliver]] = deque()
        self._cancelled: deque[Request] = deque()
        self._followed: dict[Request, _Deliver] = {}  # touched by the thread alone
        self._is_closed = False
        self._thread: threading.Thread | None = None

    async def stream(self, request: Request) -> AsyncIterator[Piece]:
        """Queue a request and yield what is new of it until it has ended. Left early, it is cancelled.

        Raises what Core.submit raises, and the error that has ended a continuation.
        """
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[Piece | BaseException | None]()

        def deliver(item: Piece | BaseException | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(queue.put_nowait, item)

        self._tell(self._arrived, (request, deliver))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._tell(self._cancelled, request)

    def close(self) -> None:
        """Cancel what is still followed and end the thread; its streams raise RuntimeError."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _tell(self, inbox: deque[Any], message: object) -> None:
        with self._condition:
            if self._is_closed and inbox is self._arrived:
                raise RuntimeError("this driver is closed")
            inbox.append(message)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tokenmill steps", daemon=True)
                self._thread.start()
            self._condition.notify()

    def _run(self) -> None:
        while self._take_messages():
            try:
                self._core.step()
            except BaseException as error:  # noqa: BLE001  (it belongs to whoever follows, not to this thread)
                self._end_all(error)
            for request, deliver in list(self._followed.items()):
                self._deliver(request, deliver)
        self._end_all(RuntimeError("the driver was closed"))

    def _take_messages(self) -> bool:
        """Submit what has arrived and cancel what was left; wait while nothing is followed. False when closed."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_closed or self._arrived or self._cancelled or self._followed)
            arrived, cancelled = list(self._arrived), list(self._cancelled)
            self._arrived.clear()
            self._cancelled.clear()
        for request, deliver in arrived:
            try:
                self._core.submit(request)
                self._followed[request] = deliver
            except BaseException as error:  # noqa: BLE001  (the same)
                self._core.cancel(request)
                deliver(error)
        for request in cancelled:
            self._followed.pop(request, None)
            self._core.cancel(request)
        return not self._is_closed

    def _deliver(self, request: Request, deliver: _Deliver) -> None:
        try:
            for piece in self._core.take(request):
                deliver(piece)
        except Exception as error:  # noqa: BLE001  (the error that has ended a continuation, whatever it is)
            deliver(error)
        if request.is_done:
            deliver(None)
            del self._followed[request]

    def _end_all(self, error: BaseException) -> None:
        for request, deliver in list(self._followed.items()):
            deliver(error)
            self._core.cancel(request)
        self._followed.clear()
