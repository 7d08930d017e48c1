"""The driver between the event loop and the engine's thread, in which requests are queued and answers are collected.

The event loop never waits for a step. After each step the engine's thread hands what is new of every job to it, in one
call.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tokenmill.engine.core import Core
from tokenmill.engine.loop import Observer
from tokenmill.engine.outputs import Piece, Tracker
from tokenmill.engine.requests import Request
from tokenmill.engine.session import Session
from tokenmill.errors import TokenmillError
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.serve.http.errors import EngineDied
from tokenmill.serve.loop.metrics import Metrics

log = logging.getLogger(__name__)

HUNG_S, HUNG_TIMES = 2.0, 10.0  # a step hangs that takes so long, and so many times the longest one before
FIRST_STEPS, FIRST_S = 8, 120.0  # until so many are known, a step may take this long
LOOKS_S = 0.1  # between two looks whether a step hangs that the end of a server waits for

SILENCE_S = 10.0  # see Driver.pieces

T = TypeVar("T")
Update = list[Piece] | Exception


@dataclass(eq=False)
class Job:
    """A job for a client. Its functions are called in the engine's thread: `take` returns the pieces that are new, or
    raises the error that ended it; `cancel` is called in the end, too. trackers: of its continuations. name: of the
    answer. has_moved: whether a step that brought no pieces is told, by an empty list. updates: the pieces of each
    step, or the error; None once it is over. They are read in the event loop.
    """

    submit: Callable[[], None]
    take: Callable[[], list[Piece]]
    cancel: Callable[[], None]
    is_over: Callable[[], bool]
    trackers: Callable[[], list[Tracker]] = list
    name: str = ""
    has_moved: Callable[[], bool] = bool
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    updates: asyncio.Queue[Update | None] = field(default_factory=asyncio.Queue)
    _is_silent: bool = False

    def put(self, new: Update | None) -> None:
        """Add to `updates`. Called in the event loop."""
        self._is_silent = False
        self.updates.put_nowait(new)

    @contextmanager
    def silence_broken(self, after_s: float) -> Iterator[None]:
        """Put an empty list into `updates` inside this context when nothing was put for `after_s` to twice as long."""
        self._timer = self.loop.call_later(after_s, self._look, after_s)
        try:
            yield
        finally:
            self._timer.cancel()

    def _look(self, after_s: float) -> None:
        if self._is_silent:
            self.updates.put_nowait([])
        self._is_silent, self._timer = True, self.loop.call_later(after_s, self._look, after_s)


class Steps(Observer):
    """The number of steps and the time of the longest, in seconds."""

    def __init__(self) -> None:
        self.count, self.longest_s, self._begun_s = 0, 0.0, 0.0

    def phase(self, name: str, plan: Plan | None) -> None:
        if name == "begin":
            self._begun_s = time.perf_counter()
        elif name == "deliver":
            self.count, self.longest_s = self.count + 1, max(self.longest_s, time.perf_counter() - self._begun_s)


class Driver:
    """The driver, which has steps made while there are requests.

    error: set when nothing is served any more. has_failed: whether a step raised; then on_failure is called, in the
    engine's thread.
    """

    def __init__(self, core: Core, metrics: Metrics, on_failure: Callable[[], None] = lambda: None) -> None:
        self.core, self.metrics = core, metrics
        self.error: EngineDied | None = None
        self.has_failed = False
        self.on_failure = on_failure
        self._steps, self._observed = Steps(), ExitStack()
        self._live: list[Job] = []
        self._is_watching = False  # whether `_after_step` is called after each step

    def start(self) -> None:
        """Begin to serve."""
        for observer in (self.metrics, self._steps):
            self._observed.enter_context(self.core.observed_by(observer))
        self.core.loaded.program.on_loss(lambda error: self._post(partial(self._failed, error)))
        self.core.thread.start()

    def stop(self, is_hung: Callable[[], bool] | None = None) -> bool:
        """End what still runs, after the step that is being made; return False, with nothing ended, where `is_hung`
        says that the step has no end. Default: the property of that name. Called from any other thread.
        """
        has_stopped = threading.Event()

        def stop() -> None:
            self._observed.close()
            self._end_all(self.error or EngineDied("the server is shutting down"))
            has_stopped.set()

        self._post(stop)
        while not has_stopped.wait(LOOKS_S):
            if self.is_hung if is_hung is None else is_hung():
                return False
        return True

    @property
    def is_hung(self) -> bool:
        """Return whether the step that is being made takes much longer than any before it."""
        begun_s, steps = self.core.step_begun_s, self._steps
        limit_s = max(HUNG_S, HUNG_TIMES * steps.longest_s) if steps.count >= FIRST_STEPS else FIRST_S
        return begun_s is not None and time.perf_counter() - begun_s > limit_s

    @property
    def answers(self) -> dict[int, str]:
        """The answer that each sequence writes, by its id. Read in the engine's thread."""
        return {each.sequence.id: job.name for job in self._live for each in job.trackers()}

    def pieces(
        self, request: Request, name: str = "", has_moved: Callable[[], bool] = bool
    ) -> AsyncGenerator[list[Piece], None]:
        """Queue a request and yield what is new of it, step by step. Closed early, it is cancelled.

        An empty list comes when nothing was new for SILENCE_S to twice as long, and after a step for which `has_moved`
        says so, which is called in the engine's thread. name: of the answer that it writes.
        """
        core = self.core
        doing = partial(core.submit, request), partial(core.take, request), partial(core.cancel, request)
        return self._updates(Job(*doing, lambda: request.is_done, lambda: request.trackers, name, has_moved))

    async def score(self, sequence: Sequence) -> None:
        """Run a sequence of which nothing is sampled, to its end; its logits go to its `on_logits`."""
        core = self.core

        def take() -> list[Piece]:
            core.check_scored(sequence)
            return []

        doing = partial(core.enqueue, sequence), take, partial(core.release, sequence)
        await self._finish(Job(*doing, lambda: sequence.finish_reason is not None))

    async def keep(self, session: Session, client: bytes, do: Callable[[], T]) -> T:
        """Have the rows of a session, beside what else runs; then call a function in the engine's thread, before
        another step could take their blocks. Without a result the session is of no use, and closed.
        """
        is_loaded, result = list[Callable[[], bool]](), list[T]()

        def is_over() -> bool:
            return is_loaded[0]()

        def take() -> list[Piece]:
            if is_over():
                result.append(do())
            return []

        def cancel() -> None:
            if not result:
                session.close()

        submit: Callable[[], None] = lambda: is_loaded.append(session.begin_load(client))  # noqa: E731
        await self._finish(Job(submit, take, cancel, is_over))
        return result[0]

    async def _finish(self, job: Job) -> None:
        async with aclosing(self._updates(job)) as updates:
            async for _ in updates:
                pass

    async def call(self, do: Callable[[], T]) -> T:
        """Call a function in the engine's thread, between two steps; return its result."""
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    self.core.thread.post(partial(told, do()))
                except Exception as error:  # noqa: BLE001  (it is the caller's)
                    future.set_exception(error)

        def told(result: T) -> None:
            self.metrics.update_gauges()  # after the blocks that were let go of
            future.set_result(result)

        self._post(call)
        if self.error is not None:
            raise self.error
        return await asyncio.wrap_future(future)

    async def _updates(self, job: Job) -> AsyncGenerator[list[Piece], None]:
        self._post(partial(self._submit, job))
        is_over = False
        try:
            with job.silence_broken(SILENCE_S):
                while (updates := await job.updates.get()) is not None:
                    if isinstance(updates, Exception):
                        raise updates
                    yield updates
            is_over = True
        finally:
            if not is_over:
                self._post(partial(self._cancel, job))

    def _post(self, do: Callable[[], Any]) -> None:
        """Have a function called, even if somebody has closed the engine, whose thread has ended then."""
        self.core.thread.post(do)
        self.core.thread.start()

    # ---- in the thread

    def _submit(self, job: Job) -> None:
        try:
            if self.error is not None:
                raise self.error
            job.submit()
        except Exception as error:  # noqa: BLE001  (the client hears of it; the others go on)
            self._tell({job: [error]})
            return
        self._live.append(job)
        if not self._is_watching:
            self._is_watching = True
            self.core.watch(self._after_step, self._failed)

    def _cancel(self, job: Job) -> None:
        if job in self._live:
            self._end(job)
            self.core.thread.post(self.metrics.update_gauges)

    def _after_step(self) -> bool | None:
        """Hand out what is new; True once no job is left."""
        self.core.check_open()
        self._hand_out()
        self._is_watching = bool(self._live)
        return None if self._live else True

    def _failed(self, error: BaseException) -> None:
        if self.has_failed:
            return
        self.has_failed, self._is_watching = True, False
        is_known = isinstance(error, TokenmillError)
        said = str(error) if is_known else "".join(traceback.format_exception(error))
        log.error("the engine has failed, so the server ends: %s", said)
        self.error = EngineDied(f"the engine has failed: {type(error).__name__}")  # which clients see
        self.on_failure()
        self._end_all(self.error)

    def _end_all(self, error: EngineDied) -> None:
        self.error = error
        self._tell({job: [error] for job in self._live})
        self._live = []

    def _end(self, job: Job) -> None:
        """Forget a job that is over or not wanted any more."""
        self._live.remove(job)
        job.cancel()
        for tracker in job.trackers():
            self.metrics.ended(tracker.sequence, tracker.completion)
        self.metrics.request_ended(job.trackers())

    def _hand_out(self) -> None:
        """Hand what is new of every job to the event loop."""
        updates: dict[Job, list[Update | None]] = {}
        for job in list(self._live):
            try:
                pieces = job.take()
                is_told = pieces or job.has_moved()
                updates[job] = [*([pieces] if is_told else []), *([None] if job.is_over() else [])]
            except Exception as error:  # noqa: BLE001  (the error of this job; the others go on)
                updates[job] = [error]
            if updates[job] and not isinstance(updates[job][-1], list):
                self._end(job)
        self.metrics.update_gauges()  # before clients hear of it, so that what they ask then is up to date
        self._tell(updates)

    def _tell(self, updates: Mapping[Job, list[Any]]) -> None:
        for loop in {job.loop for job in updates}:
            told = [(job, new) for job, all_new in updates.items() if job.loop is loop for new in all_new]
            if told:
                with suppress(RuntimeError):  # the event loop is closed: no request awaits this job
                    loop.call_soon_threadsafe(_put_all, told)


def _put_all(told: list[tuple[Job, Any]]) -> None:
    for job, new in told:
        job.put(new)
