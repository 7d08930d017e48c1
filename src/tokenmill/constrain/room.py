"""Threads with room for llguidance to compile in: it follows rules and references on its stack, where a few thousand,
one in the other, would end the process with the stack of other threads.

A compilation cannot be stopped from outside. One for which nobody waits any more ends where it next asks, and the
interpreter waits for it before it takes itself apart: a thread that comes back from llguidance later ends the process
with a signal.
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from tokenmill.errors import CapacityError, RequestError

T = TypeVar("T")
STACK = 1 << 30
"""Bytes of addresses; memory is taken for the used ones alone. A level of rules takes 4 KiB, one of a schema up to 20,
and as many as are in 512 KiB of text have to fit."""
EXIT_S = 60.0
"""Seconds for which a process that is ending waits. It then ends with exit code 1, since its own is not known here."""

_lock = threading.Lock()
_jobs: "WeakSet[CompileJob[Any]]" = WeakSet()
_here = threading.local()  # its `job`: the job of the thread


class GivenUp(Exception):
    """Nobody waits for the outcome any more."""


@dataclass(eq=False)
class CompileJob(Generic[T]):
    """A call of a function in a thread of its own. outcome: what it will return or raise."""

    outcome: Future[T] = field(default_factory=Future)
    is_wanted: bool = True
    thread: threading.Thread = field(init=False)


def begin(make: Callable[[], T]) -> CompileJob[T]:
    """Begin to call a function."""
    job = CompileJob[T]()

    def run() -> None:
        try:
            _here.job = job
            job.outcome.set_result(make())
        except Exception as error:  # noqa: BLE001  (it is raised where it is waited for)
            job.outcome.set_exception(error)

    job.thread = threading.Thread(target=run, name="compile a constraint", daemon=True)
    with _lock:
        before = threading.stack_size(STACK)
        try:
            job.thread.start()
            _jobs.add(job)
        except RuntimeError as error:  # as where the memory of processes is limited
            raise RequestError(f"a constraint needs {STACK >> 20} MiB of addresses to compile in: {error}") from None
        finally:
            threading.stack_size(before)
    return job


def with_room(make: Callable[[], T]) -> T:
    """Call a function in a thread of its own, and return or raise what it does."""
    return begin(make).outcome.result()


def check_wanted() -> None:
    """Raise GivenUp in a thread of this module whose outcome nobody wants. Called between steps that take long."""
    if (job := getattr(_here, "job", None)) is not None and not job.is_wanted:
        raise GivenUp


class Budget:
    """A limit on calls that take long. seconds: for which a call is waited for. most: calls that may go on after that;
    while they do, none begins.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self._most = seconds, most
        self._abandoned: list[CompileJob[Any]] = []

    def within(self, make: Callable[[], T], setting: str) -> T:
        """Call a function, and return or raise what it does. TimeoutError after the time; CapacityError, which names
        the setting, where too many calls go on.
        """
        self._abandoned = [job for job in self._abandoned if job.thread.is_alive()]
        if (number := len(self._abandoned)) >= self._most:
            what = "constraints that are compiled for longer than they may"
            raise CapacityError(what, number + 1, self._most, f"{setting}, or try again later")
        job = begin(make)
        try:
            return job.outcome.result(self.seconds)
        except TimeoutError:
            if job.outcome.done():  # it is of the function itself
                raise
            job.is_wanted = False
            self._abandoned.append(job)
            raise


@atexit.register
def _end_all() -> None:
    """Wait for the threads that are left, and end the process without the interpreter's help where they go on."""
    code, until = 1, time.monotonic() + EXIT_S
    with _lock:
        jobs = list(_jobs)
    for job in jobs:
        job.is_wanted = False
    try:
        for job in jobs:
            job.thread.join(max(0.0, until - time.monotonic()))
    except KeyboardInterrupt:
        code = 130
    if any(job.thread.is_alive() for job in jobs):
        sys.stdout.flush()
        sys.stderr.write(f"a constraint is still compiled; the process ends with exit code {code}\n")
        sys.stderr.flush()
        os._exit(code)
