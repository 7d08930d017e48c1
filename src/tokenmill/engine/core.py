"""The public methods by which engine, sessions, scoring, servers, batches and tests drive the loop (loop.py).

Single stream, batch, continuous batching, chunked prefill and speculation are settings of one loop. The scheduler and
the requests are moved by the engine's thread alone (thread.py), to which every method here hands what it does.
"""

import time
import weakref
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, TypeVar

from tokenmill.engine.inputs import InputProcessor
from tokenmill.engine.loop import Loop, Observer
from tokenmill.engine.outputs import Completion, Ended, Piece, Tracker
from tokenmill.engine.requests import Prompt, Request
from tokenmill.engine.thread import EngineThread, ended_in_time
from tokenmill.errors import NO_HEAD, CapacityError, RequestError
from tokenmill.kernels.threads import torch_threads
from tokenmill.loader.loaded import LoadedModel
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.speculate.speculation import Speculation

T = TypeVar("T")


class Core:
    """One loaded model, its scheduler and the requests that are queued or running: `core` of an Engine.

        core.submit(request := core.request("Once upon a time", SamplingParams(max_new_tokens=20), priority=1))
        while not request.is_done:
            core.step()
        print(core.take(request))

    loaded: the model with its program and its cache. scheduler: its methods are called in the engine's thread alone,
    between two steps. speculation: the proposer, and the counts of its drafts. trackers: of the requests that have not
    ended, by the id of their sequence. receipts: see Ended. thread: the core's own, but a draft model's core shares the
    thread of its engine. step_begun_s: when the current step began, by time.perf_counter; None between two steps.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        scheduler: Scheduler,
        speculation: Speculation,
        thread: EngineThread | None = None,
        receipts: Ended | None = None,
    ) -> None:
        self.loaded, self.scheduler, self.speculation = loaded, scheduler, speculation
        self.inputs, self.loop = InputProcessor(loaded), Loop(loaded, scheduler, speculation)
        self.trackers, self.receipts = self.loop.trackers, receipts
        self.thread = thread or EngineThread()
        self.adapters: Any = None  # see engine/adapters.py
        self.step_begun_s: float | None = None
        self._is_closed = False
        weakref.finalize(self, self.thread.stop).atexit = False

    # ---- the thread

    def call(self, do: Callable[[], T]) -> T:
        """Call a function in the engine's thread, between two steps; return its result or raise its error.

        Where this is interrupted, the function was not called at all, or has been called to its end.
        """
        if not self.thread.is_current:
            return self.thread.call(do)
        self._check_between_steps()
        return do()

    def wait(self, poll: Callable[[], T | None]) -> T:
        """Have steps made until a function returns something other than None, and return that.

        It is called in the engine's thread, before the first step and after each. Its errors and a step's are raised.
        """
        if not self.thread.is_current:
            return self.thread.wait(poll, self._step)
        self._check_between_steps()
        while (result := poll()) is None:
            self._step()
        return result

    def watch(self, poll: Callable[[], Any], on_error: Callable[[BaseException], None]) -> None:
        """Do what `wait` does without a waiting caller: on_error is called with an error of the function or a step."""
        self.thread.post(poll, self._step, on_error)

    def step(self) -> None:
        """Move every running sequence by one step. `take` raises the error of a request that fails alone."""
        self.check_open()
        self.call(self._step)

    def _check_between_steps(self) -> None:
        if self.step_begun_s is not None:
            raise RequestError("a step is being made: an observer cannot use the engine now")

    # ---- requests

    def request(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        timeout_s: float = inf,
        salt: bytes = b"",
        emitted: List[List[int]] | None = None,
        adapter: str | None = None,
    ) -> Request:
        """Check and make a request, not queued yet: params.n continuations of a text or of token ids.

        priority: a lower one runs first. timeout_s: seconds from now until it fails with DeadlinePassed. salt: only
        requests of equal salt share rows of the cache. emitted: to resume a request that was broken off, perhaps by
        another engine: the tokens of all pieces of each continuation; `params` needs the seed of that request, which
        its completions have too. The text goes on as it would have without the break; completions are whole, except
        that log-probabilities of emitted tokens are not computed again. A continuation that has ended within its
        emitted tokens gives no piece. adapter: the name of a loaded adapter that computes the text. RequestError or
        CapacityError if the request could never be served.
        """
        self.check_open()
        tokens, applied = self.inputs.encode(prompt), self.adapter(adapter)
        sequences = list(self.inputs.sequences(tokens, params, priority, salt, adapter=applied))
        for sequence in sequences:
            self.scheduler.check_length(sequence.max_tokens)
        if emitted is not None:
            self.inputs.resume(sequences, emitted)
        return Request(sequences, self.loop.clock() + timeout_s)

    def adapter(self, name: str | None) -> Any:
        """Find a loaded adapter; for None the one of every text, if any. RequestError for another name."""
        return None if self.adapters is None else self.adapters.find(name)

    def submit(self, request: Request) -> None:
        """Queue all sequences of a request, once; CapacityError, with nothing queued, where max_waiting is exceeded."""
        self.call(partial(self._submit, request))

    def _submit(self, request: Request) -> None:
        self.loop.fail_overdue()
        limit, needed = self.loaded.config.max_waiting, len(self.scheduler.waiting) + len(request.sequences)
        if limit is not None and needed > limit:
            raise CapacityError("places in the queue", needed, limit, "max_waiting, or try again later")
        for index, sequence in enumerate(request.sequences):
            detokenizer = self.inputs.detokenizer(sequence)
            tracker = Tracker(sequence, detokenizer, self.loop.clock(), index, request.deadline_s, self.receipts)
            tracker.resume()
            request.trackers.append(tracker)
            if not tracker.has_ended:
                self._enqueue(sequence)
                self.trackers[sequence.id] = tracker

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a new or parked sequence without a tracker: it gets no text; its logits may go to its `on_logits`."""
        self.call(partial(self._enqueue, sequence))

    def _enqueue(self, sequence: Sequence) -> None:
        self.check_open()
        model, reads_logits = self.loaded.model_config, sequence.score_from is None or sequence.on_logits is not None
        if not model.has_head and (reads_logits or (model.both_ways and sequence.kept.is_own)):
            raise RequestError(NO_HEAD)
        self.loop.leave_out_finished()
        (self.scheduler.resume if sequence in self.scheduler.parked else self.scheduler.add)(sequence)

    def run_to_end(self, sequence: Sequence) -> None:
        """Wait until a queued sequence that samples nothing has ended. RequestError if it was ended early."""
        self.wait(lambda: sequence.finish_reason)
        self.check_scored(sequence)

    def check_scored(self, sequence: Sequence) -> None:
        """Raise RequestError for a sequence that was ended before all of its rows were computed."""
        if sequence.finish_reason not in (None, "scored"):
            self.check_open()
            raise RequestError("this was cancelled before its end")

    def take(self, request: Request) -> list[Piece]:
        """Take a piece of each continuation that has something new; raise the error of one that has failed, once."""
        return self.call(lambda: _new_pieces(request))

    def follow(self, request: Request, prepare: Callable[[], None] = lambda: None) -> Generator[Piece, None, None]:
        """Queue a request and yield its pieces until it has ended; cancel it if the generator is closed early.

        `prepare` is called just before the request is queued, and nothing else happens between the two. Steps are made
        while the next piece is waited for.
        """

        def begin() -> None:
            prepare()
            self._submit(request)

        def news() -> tuple[list[Piece], bool] | None:
            pieces = _new_pieces(request)
            return (pieces, request.is_done) if pieces or request.is_done else None

        try:
            self.call(begin)
            over = not request.sequences
            while not over:
                pieces, over = self.wait(news)
                yield from pieces
        finally:
            self.cancel(request)
            request.forget_errors()

    def finish(self, requests: List[Request]) -> list[Completion]:
        """Queue requests and wait for all completions, in order. An error of one request cancels the others."""

        def begin() -> list[Tracker]:
            for request in requests:
                self._submit(request)
            return [tracker for request in requests for tracker in request.trackers]

        def completions() -> list[Completion] | None:
            for each in trackers:
                if each.error is not None:
                    each.raise_error()
            found = [each.completion for each in trackers if each.completion is not None]
            return found if len(found) == len(trackers) else None

        try:
            trackers = self.call(begin)
            return self.wait(completions)
        finally:
            for request in requests:
                self.cancel(request)
                request.forget_errors()

    def cancel(self, request: Request) -> None:
        """End a request before the next step; `follow` and `finish` in another thread raise RequestError."""
        if not request.is_done:
            self.thread.tidy(lambda: self.loop.end([each.sequence for each in request.trackers if not each.has_ended]))

    def release(self, sequence: Sequence) -> None:
        """End a sequence for good and give its blocks back, before the next step."""
        self.thread.tidy(partial(self._release, sequence))

    def release_with(self, owner: object, sequence: Sequence) -> None:
        """Have a sequence released when an object is garbage-collected, unless it was released before."""
        known = weakref.ref(self)  # the thread ends with this core, so it must not hold it

        def release() -> None:
            if (core := known()) is not None:
                core._release(sequence)

        self.thread.when_collected(owner, release)

    def close(self) -> None:
        """End every sequence with an error, and let go of weights and cache; during a step, after the step.

        In a forked child it does nothing, so that a child can leave the context of its parent's engine.
        """
        if self.thread.is_inherited:
            return
        if self.thread.is_current and self.step_begun_s is None:  # a draft model's core, closed by its engine's loop
            self._end_all()
        else:
            self.thread.post(self._end_all)  # first, and posted: interrupted, it still ends what others wait for
            self._is_closed = True
        try:
            if not self.thread.is_current:
                with ended_in_time(self.loaded):
                    self.thread.call(lambda: None)
        finally:
            self.thread.stop()

    def check_open(self) -> None:
        """Raise RequestError after `close`."""
        if self._is_closed:
            raise RequestError("this engine is closed")

    @property
    def num_used_blocks(self) -> int:
        """Count the blocks of the cache that sequences hold."""
        allocator = self.scheduler.allocator
        if not self.thread.is_current:
            return self.call(lambda: allocator.num_blocks - allocator.num_free)
        return allocator.num_blocks - allocator.num_free

    def clear_prefix_cache(self) -> None:
        """Forget which rows are in memory, so that later requests find no rows of earlier ones."""
        self.call(self.scheduler.memory.forget_names)

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Call an observer at every step inside this context."""
        self.loop.observers = [*self.loop.observers, observer]
        try:
            yield
        finally:
            self.loop.observers = [each for each in self.loop.observers if each is not observer]

    # ---- in the thread

    def _step(self) -> None:
        if self._is_closed:
            return
        self.step_begun_s = time.perf_counter()
        try:
            self.loop.leave_out_finished()
            self.loop.fail_overdue()
            with torch_threads(self.loaded.num_torch_threads):
                self.loop.step()
            self.loop.leave_out_finished()
        except BaseException as error:
            self.loop.begin_anew(error)
            raise
        finally:
            self.step_begun_s = None

    def _release(self, sequence: Sequence) -> None:
        sequence.keep = False
        self.loop.end([sequence])

    def _end_all(self) -> None:
        self._is_closed = True
        self.loop.close()


def _new_pieces(request: Request) -> list[Piece]:
    return [piece for tracker in request.trackers if (piece := tracker.take()) is not None]


class Held:
    """The owner of a sequence: it is released by `release`, or when this object is garbage-collected, as after an
    interrupt within `release`. is_held: not released yet.

    It must not be reachable from the sequence, which the scheduler knows until it is released.
    """

    def __init__(self, core: Core, sequence: Sequence) -> None:
        self._core, self._sequence = core, sequence
        self.is_held = True
        core.release_with(self, sequence)

    def release(self) -> None:
        """End the sequence for good and give its blocks back, before the next step."""
        if self.is_held:
            self._core.release(self._sequence)
            self.is_held = False
