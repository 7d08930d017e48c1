"""The public methods by which engine, sessions, scoring, servers, batches and tests drive the loop (loop.py).

Single stream, batch, continuous batching, chunked prefill and speculation are settings of one loop. Changes to the
scheduler or to requests are made inside `with core.lock, core.transaction:` (transaction.py).
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from math import inf
from weakref import WeakMethod

from tokenmill.engine.inputs import InputProcessor
from tokenmill.engine.loop import Loop
from tokenmill.engine.observers import Observer
from tokenmill.engine.outputs import Completion, Piece, Tracker
from tokenmill.engine.requests import Prompt, Request
from tokenmill.engine.transaction import Transaction
from tokenmill.errors import CapacityError, DeadlinePassed, RequestError, TokenmillError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.speculate.speculation import Speculation

__all__ = ["Core"]


class Core:
    """One loaded model, its scheduler and the requests that are queued or running: `core` of an Engine.

        core.submit(request := core.request("Once upon a time", SamplingParams(max_new_tokens=20), priority=1))
        while not request.is_done:
            core.step()
        print(core.take(request))

    trackers: of requests that have not ended, by sequence id. to_cancel: sequences that the next transaction ends, with
    the tracker that is cancelled, or None if they go for good; finalizers, which may wait for no lock, append to it.
    """

    def __init__(self, loaded: LoadedModel, scheduler: Scheduler, speculation: Speculation) -> None:
        self.loaded, self.scheduler, self.speculation = loaded, scheduler, speculation
        self.inputs, self.loop = InputProcessor(loaded), Loop(loaded, scheduler, speculation)
        self.trackers = self.loop.trackers
        self.to_cancel: deque[tuple[Sequence, Tracker | None]] = deque()
        self.lock, self.transaction = threading.RLock(), Transaction(self._end_cancelled, self._recover)
        self._is_undelivered = self._is_closed = False
        unlock = WeakMethod(self._unlock)
        os.register_at_fork(after_in_child=lambda: (found := unlock()) and found())

    # ---- requests

    def request(
        self, prompt: Prompt, params: SamplingParams, *, priority: int = 0, timeout_s: float = inf, salt: bytes = b""
    ) -> Request:
        """A checked request, not queued yet: params.n continuations of a text or of token ids.

        priority: a lower one runs first. timeout_s: seconds from now until it fails with DeadlinePassed. salt: only
        requests of equal salt share rows of the cache. RequestError or CapacityError if it could never be served.
        """
        self.check_open()
        sequences = list(self.inputs.sequences(self.inputs.encode(prompt), params, priority, salt))
        for sequence in sequences:
            self.scheduler.check_length(sequence.max_tokens)
        return Request(sequences, self.loop.clock() + timeout_s)

    def submit(self, request: Request) -> None:
        """Queue all sequences of a request, or none: CapacityError if the queue is full (`max_waiting`). Only once."""
        with self.lock, self.transaction:
            self._fail_overdue()
            limit, needed = self.loaded.config.max_waiting, len(self.scheduler.waiting) + len(request.sequences)
            if limit is not None and needed > limit:
                raise CapacityError("places in the queue", needed, limit, "max_waiting, or try again later")
            for index, sequence in enumerate(request.sequences):
                detokenizer = self.inputs.detokenizer(sequence)
                tracker = Tracker(sequence, detokenizer, self.loop.clock(), index, request.deadline_s)
                request.trackers.append(tracker)  # first, so that `cancel` finds the sequence if an interrupt comes now
                self.trackers[sequence.id] = tracker
                self.enqueue(sequence)

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a sequence, new or parked. One without a tracker gets no text; its logits may go to its `on_logits`."""
        with self.lock, self.transaction:
            self.check_open()
            (self.scheduler.resume if sequence in self.scheduler.parked else self.scheduler.add)(sequence)

    def run_to_end(self, sequence: Sequence) -> None:
        """Step until a queued sequence, of which nothing is sampled, has ended. RequestError if it was ended early."""
        while sequence.finish_reason is None:
            self.step()
        if sequence.finish_reason != "scored":
            self.check_open()
            raise RequestError("this was cancelled before its end")

    def take(self, request: Request) -> list[Piece]:
        """A piece of each continuation that has something new. Raises the error that ended one, once."""
        with self.lock, self.transaction:
            return [piece for tracker in request.trackers if (piece := tracker.take()) is not None]

    def follow(self, request: Request, prepare: Callable[[], None] = lambda: None) -> Generator[Piece, None, None]:
        """Queue a request and yield what is new of it until it has ended. Closed early, it is cancelled.

        `prepare` is called just before the request is queued, and no other thread comes between the two.
        """
        try:
            with self.lock, self.transaction:
                prepare()
                self.submit(request)
            over = not request.sequences
            while not over:
                if not request.is_done:  # a step of another thread may have finished it
                    self.step()
                with self.lock:
                    pieces, over = self.take(request), request.is_done
                yield from pieces
        finally:
            self.cancel(request)

    def finish(self, requests: List[Request]) -> list[Completion]:
        """Queue requests and wait for all completions, in order. At an error the others are cancelled."""
        try:
            for request in requests:
                self.submit(request)
            trackers = [tracker for request in requests for tracker in request.trackers]
            while len(completions := [each.completion for each in trackers if each.completion]) < len(trackers):
                for error in filter(None, (each.error for each in trackers)):
                    raise error
                self.step()
            return completions
        finally:
            for request in requests:
                self.cancel(request)

    def cancel(self, request: Request) -> None:
        """End a request before the next step; `follow` and `finish` in another thread raise RequestError."""
        self.to_cancel.extend((each.sequence, each) for each in request.trackers if not each.has_ended)

    def close(self) -> None:
        """End every sequence with an error, and let go of weights and cache. In the midst of a step, at its end."""
        with self.lock:
            self._is_closed = True
            if not self.transaction.is_stepping:
                with self.transaction:
                    self._end_all()

    def check_open(self) -> None:
        """RequestError after `close`."""
        if self._is_closed:
            raise RequestError("this engine is closed")

    @property
    def num_used_blocks(self) -> int:
        """Blocks of the cache that some sequence holds."""
        if not self.transaction.is_stepping:
            with self.lock, self.transaction:
                pass  # which ends what is to be cancelled
        return self.scheduler.allocator.num_blocks - self.scheduler.allocator.num_free

    def clear_prefix_cache(self) -> None:
        """Later requests find no rows of earlier ones in memory."""
        with self.lock, self.transaction:
            self.scheduler.allocator.forget_names()

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Inside this context, call an observer at every step."""
        self.loop.observers = [*self.loop.observers, observer]
        try:
            yield
        finally:
            self.loop.observers = [each for each in self.loop.observers if each is not observer]

    # ---- steps

    def step(self) -> None:
        """Move every running sequence by one step. What ends a request alone is raised by `take`."""
        with self.lock, self.transaction:
            self.check_open()
            try:
                self.transaction.is_stepping = True
                self._redeliver()
                self._fail_overdue()
                with self.loaded.torch_threads():
                    self.loop.step()
            except TokenmillError:
                self.transaction.recover()
                raise
            finally:
                self.transaction.is_stepping = False
            self._end_cancelled()
            if self._is_closed:
                self._end_all()

    def _redeliver(self) -> None:
        """After an interrupted step: texts are made anew of all tokens, because their decoding may have broken off."""
        if self._is_undelivered:
            for tracker in self.trackers.values():
                tracker.detokenizer = self.inputs.detokenizer(tracker.sequence)
            self.loop.deliver(list(self.trackers.values()))
            self._is_undelivered = False

    def _unlock(self) -> None:
        """In a forked process there is no thread that could release a lock which another thread held."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self.lock = threading.RLock()
            self.transaction.recover()

    def _recover(self) -> None:
        """Drop the step in flight, and have the scheduler restore its invariants. It may be called again."""
        self.loop.in_flight, self._is_undelivered = None, True
        self.scheduler.recover()

    def _end_all(self) -> None:
        for sequence in (*self.scheduler.running, *self.scheduler.waiting):
            self.loop.fail(sequence, RequestError("this engine is closed"))
        self.loop.in_flight = None
        self.speculation.close()
        self.loaded.release()

    def _fail_overdue(self) -> None:
        for tracker in [each for each in self.trackers.values() if each.deadline_s < inf and not each.has_ended]:
            if self.loop.clock() >= tracker.deadline_s:
                after = len(tracker.tokens)
                self.loop.fail(tracker.sequence, DeadlinePassed(f"the deadline has passed after {after} tokens"))

    def _end_cancelled(self) -> None:
        """End what is to be cancelled. Each is removed last, so that an interrupt before that repeats it."""
        while self.to_cancel:
            sequence, tracker = self.to_cancel[0]
            if tracker is None or not tracker.has_ended:  # else the sequence may serve another request already
                sequence.keep = sequence.keep and tracker is not None
                (self.scheduler.park if sequence.keep else self.scheduler.drop)(sequence)
                if (tracker := self.trackers.get(sequence.id)) is not None:
                    tracker.error = RequestError("this was cancelled, or its session was closed")
                    del self.trackers[sequence.id]
                sequence.on_logits = None
            self.to_cancel.popleft()
        self.loop.leave_out_finished()
