"""The thread that steps the engine's core, and the queues between it and the event loop.

The event loop never waits for a step. It puts requests and cancellations into an inbox, which the thread empties
between two steps. After each step the thread hands what is new of every request to the loop, in one call.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Piece
from tokenmill.engine.requests import Request
from tokenmill.errors import CapacityError
from tokenmill.serve.errors import EngineDied
from tokenmill.serve.metrics import Metrics

__all__ = ["Driver"]


@dataclass(eq=False)
class Reply:
    """One request, and its pieces on their way to the event loop: a list for each step, or the error that ended it."""

    request: Request
    loop: asyncio.AbstractEventLoop
    news: asyncio.Queue[list[Piece] | Exception] = field(default_factory=asyncio.Queue)


class Driver:
    """Steps a core while there are requests.

    max_open: sequences that may run and wait; num_open: those that do. error: set when
    nothing is served any more. has_failed: whether a step raised; then on_failure is called, in the driver's thread.
    """

    def __init__(
        self, core: Core, metrics: Metrics, max_open: int, on_failure: Callable[[], None] = lambda: None
    ) -> None:
        self.core, self.metrics, self.max_open, self.num_open = core, metrics, max_open, 0
        self.error: EngineDied | None = None
        self.has_failed = False
        self.on_failure = on_failure
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._live: list[Reply] = []
        self._is_stopped = False
        self._begun_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="tokenmill-engine", daemon=True)

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def stop(self) -> None:
        """End what still runs, and wait for the thread. It may be called from any other thread."""
        self._inbox.put(partial(setattr, self, "_is_stopped", True))
        self._thread.join()

    @property
    def step_s(self) -> float:
        """How long the step that is being made has taken so far; 0 between steps."""
        begun_s = self._begun_s
        return 0.0 if begun_s is None else time.perf_counter() - begun_s

    @contextmanager
    def places(self, count: int) -> Iterator[None]:
        """Hold places for so many sequences; CapacityError if they are not free. Called in the event loop."""
        if self.num_open + count > self.max_open:
            self.metrics.rejected("queue_full")
            raise CapacityError(
                "places in the queue", count, max(self.max_open - self.num_open, 0), "max-queued-requests"
            )
        self.num_open += count
        try:
            yield
        finally:
            self.num_open -= count

    async def pieces(self, request: Request) -> AsyncGenerator[list[Piece], None]:
        """Queue a request and yield what is new of it, step by step. Closed early, it is cancelled."""
        reply = Reply(request, asyncio.get_running_loop())
        self._inbox.put(partial(self._submit, reply))
        if self.error is not None:  # asked after the put, because the thread sets it before it empties the inbox
            raise self.error
        left = len(request.sequences)
        try:
            while left:
                news = await reply.news.get()
                if isinstance(news, Exception):
                    left = 0
                    raise news
                left -= sum(piece.done is not None for piece in news)
                yield news
        finally:
            if left:
                self._inbox.put(partial(self._cancel, reply))

    # ---- in the thread

    def _run(self) -> None:
        try:
            with self.core.observed_by(self.metrics):
                while not self._is_stopped:
                    self._empty_inbox()
                    if self._live:
                        self._step()
        except BaseException as error:  # noqa: BLE001  (whatever it is, clients must hear of it)
            self.has_failed = True
            self.error = EngineDied(f"the engine has failed: {type(error).__name__}: {error}")
            self.on_failure()
        else:
            self.error = EngineDied("the server is shutting down")
        while self._live or not self._inbox.empty():
            while not self._inbox.empty():
                self._inbox.get()()
            self._tell(dict.fromkeys(self._live, self.error))
            self._live = []

    def _empty_inbox(self) -> None:
        """Do what the event loop asks for; with nothing to step, wait until it asks."""
        while not self._inbox.empty() or not (self._live or self._is_stopped):
            self._inbox.get()()

    def _step(self) -> None:
        self._begun_s = time.perf_counter()
        self.core.step()
        self._begun_s = None
        self._hand_out()

    def _look(self) -> None:
        """Take down what the engine holds; what is cancelled has given its blocks back."""
        num_used, scheduler = self.core.num_used_blocks, self.core.scheduler
        for name, value in {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting),
            "kv_cache_usage_perc": num_used / scheduler.allocator.num_blocks,
        }.items():
            self.metrics.gauges[name].set(value)

    def _submit(self, reply: Reply) -> None:
        if self.error is None:
            try:
                self.core.submit(reply.request)
            except Exception as error:  # noqa: BLE001  (the client hears of it; the others go on)
                self._tell({reply: error})
                return
        self._live.append(reply)

    def _cancel(self, reply: Reply) -> None:
        if reply in self._live and self.error is None:
            self._live.remove(reply)
            self.core.cancel(reply.request)
            self._count_ended(reply)
            self._look()

    def _hand_out(self) -> None:
        """Hand what is new of every request to the event loop."""
        news: dict[Reply, list[Piece] | Exception] = {}
        for reply in self._live:
            try:
                if pieces := self.core.take(reply.request):
                    news[reply] = pieces
            except Exception as error:  # noqa: BLE001  (the error of this request; the others go on)
                news[reply] = error
                self.core.cancel(reply.request)
        over = [each for each in self._live if each.request.is_done or isinstance(news.get(each), Exception)]
        for reply in over:
            self._live.remove(reply)
            self._count_ended(reply)
        self._look()  # before clients hear of it, so that what they ask then is up to date
        self._tell(news)

    def _count_ended(self, reply: Reply) -> None:
        for tracker in reply.request.trackers:
            self.metrics.ended(tracker.sequence, tracker.completion)

    def _tell(self, news: Mapping[Reply, list[Piece] | Exception]) -> None:
        for loop in {reply.loop for reply in news}:
            told = [(reply.news, new) for reply, new in news.items() if reply.loop is loop]
            loop.call_soon_threadsafe(_put_all, told)


def _put_all(told: list[tuple[asyncio.Queue[list[Piece] | Exception], list[Piece] | Exception]]) -> None:
    for queue, new in told:
        queue.put_nowait(new)
