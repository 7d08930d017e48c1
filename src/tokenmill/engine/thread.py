"""The engine's thread: it alone moves the scheduler and makes steps; everyone else hands it functions, and waits.

Python delivers signals to the main thread, so Ctrl-C ends the waiting of a caller and never breaks off a step.
Functions are called in the order in which they came, between two steps. Steps are made while a caller waits for them.

The waiting is done with bare locks, because a signal handler may use the engine while its own thread waits for it.
"""

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakSet, ref

from tokenmill.errors import RequestError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.process import forget_in_child
from tokenmill.program.forward import Program

log = logging.getLogger(__name__)

T = TypeVar("T")
Step = Callable[[], None]
QUIT_LOOKS_S = 0.0005
SIGNAL_LOOKS_S = 0.2  # a signal that comes just before its thread begins to sleep does not wake it


class _Task(Generic[T]):
    """A function that is called once, or between steps until it returns something other than None.

    step: makes one step meanwhile; None for a function that is called once. on_error: called with an error of the
    function or of a step, where no caller waits for it.
    """

    def __init__(
        self, poll: Callable[[], T | None], step: Step | None, on_error: Callable[[BaseException], None] | None
    ):
        self._poll, self.step, self._on_error = poll, step, on_error
        self._result: T | None = None
        self._error: BaseException | None = None
        self.has_ended = False
        self._claim = threading.Lock()  # held by the first who takes the task: the thread that calls it, or its giver
        self._end = threading.Lock()
        self._end.acquire()

    def attempt(self, error: BaseException | None = None) -> bool:
        """Call the function in the engine's thread, unless the step before raised an error; True once it is over."""
        is_once = self.step is None
        if self._claim.locked() or (is_once and not self._claim.acquire(blocking=False)):
            return True  # nobody waits for it any more
        result = None
        if error is None:
            try:
                result = self._poll()
            except BaseException as raised:  # noqa: BLE001  (it is raised where somebody waits)
                error = raised
        is_over = is_once or result is not None or error is not None
        if is_over and (is_once or self._claim.acquire(blocking=False)):
            if error is not None and self._on_error is not None:
                _guarded(partial(self._on_error, error))
            self._result, self._error, self.has_ended = result, error, True
            self._end.release()
        del error  # whose traceback holds this frame
        return is_over

    def wait(self) -> T:
        """Wait for the result, once."""
        self._await_end()
        try:
            if self._error is not None:
                raise self._error
            return self._result  # type: ignore[return-value]  # None only from a function that returns it
        finally:
            del self._error, self._result  # whose traceback holds this frame

    def take_back(self) -> None:
        """Prevent further calls of the function; if it is being called, wait for its end."""
        if not self._claim.acquire(blocking=False) and not self.has_ended:
            self._await_end()

    def _await_end(self) -> None:
        """Sleep until the task is over, and wake now and then, so that Python calls the handlers of signals."""
        while not self._end.acquire(timeout=SIGNAL_LOOKS_S):
            pass


def _log_error(error: BaseException) -> None:
    log.error("a call that nobody waits for has failed in the engine's thread", exc_info=error)


def _guarded(do: Callable[[], object]) -> None:
    """Call a function for which nobody waits, and log its error: the thread must go on for others."""
    try:
        do()
    except BaseException as error:  # noqa: BLE001
        with suppress(Exception):  # a handler of the log may raise, too
            _log_error(error)


class EngineThread:
    """One thread, which the first call begins, and which ends after `stop`. A forked child refuses to use it.

    is_inherited: this process is a forked child of the process that made the thread.
    """

    def __init__(self) -> None:
        self._collected: deque[ref[Any]] = deque()
        self._when_collected: dict[int, tuple[ref[Any], Callable[[], None]]] = {}  # by the id of the reference
        self._inbox: SimpleQueue[_Task[Any] | None] = SimpleQueue()
        self._tasks: list[_Task[Any]] = []  # tasks that wait for steps
        self._runs = threading.Lock()  # held by the thread, so that there is one
        self._ident: int | None = None
        self._quitter: int | None = None  # the thread that has called `quit`
        self._is_stopping = self._is_quitting = self.is_inherited = False
        self._process = os.getpid()
        _threads.add(self)
        forget_in_child(self)

    def forget(self) -> None:
        """Refuse every later use: this is a forked child, which has neither this thread nor the program's threads."""
        self.is_inherited, self._ident = True, None

    @property
    def is_current(self) -> bool:
        """Say whether the caller runs in the engine's thread."""
        return self._ident == threading.get_ident()

    def call(self, do: Callable[[], T]) -> T:
        """Call a function between two steps; return its result or raise its error. Not from the engine's thread."""
        return self._ask(_Task(do, None, None))

    def wait(self, poll: Callable[[], T | None], step: Step) -> T:
        """Make steps until a function returns something other than None, and return that. It is called after each."""
        return self._ask(_Task(poll, step, None))

    def post(
        self, do: Callable[[], Any], step: Step | None = None, on_error: Callable[[BaseException], None] = _log_error
    ) -> None:
        """Do what `call` does, or with `step` what `wait` does, without a waiting caller."""
        if self.is_inherited:
            raise self._refusal()
        self._inbox.put(_Task(do, step, on_error))

    def tidy(self, do: Callable[[], None]) -> None:
        """Do what `post` does; do nothing in a forked child, which has nothing to tidy."""
        if not self.is_inherited:
            self.post(do)

    def when_collected(self, owner: object, do: Callable[[], None]) -> None:
        """Have a function called, before any other call, once an object was garbage-collected."""
        # `append` is written in C: an interrupt within a finalizer in Python is lost, with the rest of the finalizer.
        known = ref(owner, self._collected.append)
        self._when_collected[id(known)] = known, do

    def stop(self) -> None:
        """End the thread once nobody waits for steps. A later call begins another one."""
        self._inbox.put(None)

    def quit(self) -> None:
        """End the thread after the step that is being made, and wait for that; for the end of the process.

        The calling thread does the tasks that it hands in afterwards itself: the interpreter begins no other thread.
        """
        self._quitter, self._is_quitting = threading.get_ident(), True
        self._inbox.put(None)
        self._await_end()

    def _ask(self, task: _Task[T]) -> T:
        if self.is_inherited:
            raise self._refusal()
        try:
            self._inbox.put(task)
            if self._quitter == threading.get_ident():
                self._do_alone(task)
            else:
                self.start()
            return task.wait()
        except BaseException:
            task.take_back()  # this may be an interrupt
            raise

    def _refusal(self) -> RequestError:
        """Make the error of a forked child: its copy of the engine has no threads, and a step would never end."""
        return RequestError(
            f"this engine was loaded in process {self._process}, and this is a forked child of it: "
            "load the model in the child, or start the child with spawn or exec"
        )

    def start(self) -> None:
        """Begin the thread if it does not run. It begins with what was posted before."""
        if not self._runs.locked():
            threading.Thread(target=self._run, name="tokenmill-engine", daemon=True).start()

    # ---- in the thread

    def _do_alone(self, task: _Task[Any]) -> None:
        """Do a task in the place of the thread, once it has ended for good."""
        self._await_end()
        self._ident = threading.get_ident()
        try:
            while not task.has_ended:
                if self._tasks and self._inbox.empty():
                    self._move()
                else:
                    self._accept(self._inbox.get())
        finally:
            self._ident = None

    def _await_end(self) -> None:
        """Wait for the end of the thread, holding nothing, because a signal handler may do the same meanwhile."""
        while self._runs.locked():
            time.sleep(QUIT_LOOKS_S)

    def _run(self) -> None:
        """Run the thread. If two were begun at once, one ends here; late tasks are done by either, or by the next."""
        while self._runs.acquire(blocking=False):
            self._ident = threading.get_ident()
            while self._take():
                self._move()
            self._ident = None
            self._runs.release()
            if self._inbox.empty() or self._is_quitting:
                return

    def _take(self) -> bool:
        """Call the functions handed in, until a task waits for a step; False when the thread is to end."""
        while not self._is_quitting and (not self._tasks or not self._inbox.empty()):
            if self._is_stopping and self._inbox.empty():
                self._is_stopping = False
                return False
            self._accept(self._inbox.get())
        return not self._is_quitting

    def _accept(self, task: _Task[Any] | None) -> None:
        if task is None:
            self._is_stopping = True
            return
        if self._collected:
            self._finalize()
        if not task.attempt():
            self._tasks.append(task)
        elif task.step is None:  # it may have changed what others wait for
            self._tasks = [each for each in self._tasks if not each.attempt()]

    def _move(self) -> None:
        """Make one step, and try the tasks that wait for it."""
        if self._collected:
            self._finalize()
        for step in {task.step for task in self._tasks if task.step is not None}:
            error: BaseException | None = None
            try:
                step()
            except BaseException as raised:  # noqa: BLE001  (it is raised where somebody waits)
                error = raised
            self._tasks = [task for task in self._tasks if task.step != step or not task.attempt(error)]
            del error  # whose traceback holds this frame

    def _finalize(self) -> None:
        while self._collected:
            known = self._collected.popleft()
            _guarded(self._when_collected.pop(id(known))[1])


_threads: "WeakSet[EngineThread]" = WeakSet()


@atexit.register
def _quit_all() -> None:
    """End all threads, because no thread may be within a library when the interpreter takes itself apart."""
    for thread in list(_threads):
        if not thread.is_inherited:
            thread.quit()


LAST_STEP_S = 3.0


@contextmanager
def ended_in_time(loaded: LoadedModel) -> Iterator[None]:
    """End all ranks if the last step takes longer than LAST_STEP_S, as with a stopped rank; the step fails then."""
    if getattr(loaded, "program", None) is None or loaded.resolved.config.tensor_parallel == 1:
        yield
        return
    late = threading.Timer(LAST_STEP_S, _end_ranks, [weakref.ref(loaded.program)])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()
        late.join()  # a thread that is left at the end of the interpreter would end the process by an abort


def _end_ranks(known: "weakref.ref[Program]") -> None:
    if (program := known()) is not None:
        program.close()
