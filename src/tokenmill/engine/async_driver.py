"""Requests of one core from asyncio: a thread makes the steps, and what is new of a request arrives in its event loop.

The event loop never waits for a step: it puts messages, to submit or to cancel a request, into the thread's inbox.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from queue import SimpleQueue

from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Piece
from tokenmill.engine.requests import Request

__all__ = ["AsyncDriver"]

_Deliver = Callable[[Piece | BaseException | None], None]


class AsyncDriver:
    """Made for one core; its thread runs from the first request until `close`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = threading.Lock()  # so that nothing is submitted behind the last message, which is None
        self._inbox: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
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

        with self._lock:
            if self._is_closed:
                raise RuntimeError("this driver is closed")
            self._inbox.put(partial(self._submit, request, deliver))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tokenmill steps", daemon=True)
                self._thread.start()
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._inbox.put(partial(self._cancel, request))

    def close(self) -> None:
        """Cancel what is still followed and end the thread; its streams raise RuntimeError."""
        with self._lock:
            self._is_closed = True
            self._inbox.put(None)
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            while not self._followed or not self._inbox.empty():
                message = self._inbox.get()
                if message is None:
                    self._end_all(RuntimeError("the driver was closed"))
                    return
                message()
            try:
                self._core.step()
            except BaseException as error:  # noqa: BLE001  (it belongs to those who asked, not to this thread)
                self._end_all(error)
            for request, deliver in list(self._followed.items()):
                self._deliver(request, deliver)

    def _submit(self, request: Request, deliver: _Deliver) -> None:
        try:
            self._core.submit(request)
            self._followed[request] = deliver
        except BaseException as error:  # noqa: BLE001  (it belongs to whoever asked, not to this thread)
            self._core.cancel(request)
            deliver(error)

    def _cancel(self, request: Request) -> None:
        self._followed.pop(request, None)
        self._core.cancel(request)

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
            self._cancel(request)
