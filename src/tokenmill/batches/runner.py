"""The BatchRunner: rows become requests of the core, many at once, and their answers go into the journal as they end.

Rows are taken from the input a window at a time, and the rows of a window are queued in the order of their tokens, so
that prompts which begin alike follow each other and share rows of the cache. The next window is read when the last one
is queued, so that no place in the engine is empty between two windows. Only a window and what runs is held in memory.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tokenmill.batches.row import TableRow
from tokenmill.batches.task import Key, RowWork, Task
from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion

PAUSE_S = 0.02  # between looks, while rows must not be queued


@dataclass(eq=False)
class _Running:
    row: TableRow
    key: Key
    work: RowWork
    is_queued: bool = False

    @property
    def num_sequences(self) -> int:
        return len(self.work.request.sequences) or 1

    @property
    def has_ended(self) -> bool:
        """Tell whether nothing of the row is left to compute. Rows without new tokens end with their prompts."""
        return self.is_queued and (self.work.request.is_done or not self.work.request.sequences)


@dataclass
class Counts:
    """Counts of a run. rows: answers. errors: answers that are error objects. tokens: new. prompt_tokens: of
    prompts.
    """

    rows: int = 0
    errors: int = 0
    tokens: int = 0
    prompt_tokens: int = 0


@dataclass(eq=False)
class BatchRunner:
    """Rows on their way through the core. keep: takes the answer of a row. window: rows that are sorted together.
    may_queue: asked in the engine's thread before a row is queued. stop: set, to end early, by any thread. told: called
    after each answer. most: sequences that run or wait together; by default twice the places, so that a place
    that becomes free is taken in the same step.
    """

    core: Core
    task: Task
    keep: Callable[[TableRow, Key, Any], None]
    window: int
    stop: threading.Event
    may_queue: Callable[[], bool] = lambda: True
    told: Callable[[Counts], None] = lambda _: None
    most: int | None = None
    counts: Counts = field(default_factory=Counts)
    _ready: list[_Running] = field(default_factory=list)  # the next one last
    _running: list[_Running] = field(default_factory=list)

    def run(self, rows: Iterator[tuple[TableRow, Key]]) -> None:
        """Compute rows, until all are done or `stop` is set. What runs when this ends early is cancelled."""
        try:
            while not self.stop.is_set():
                self._queue(rows)
                if self._running:
                    for each in self.core.wait(self._ended):
                        self._finish(each)
                elif self._ready:
                    self.stop.wait(PAUSE_S)
                else:
                    return
        finally:
            for each in self._running:
                self._cancel(each)
            self._ready.clear()
            self._running.clear()

    def _queue(self, rows: Iterator[tuple[TableRow, Key]]) -> None:
        """Queue as many rows as may wait and run."""
        most = self.most or 2 * self.core.loaded.config.max_sequences
        while (taken := sum(each.num_sequences for each in self._running)) < most and not self.stop.is_set():
            if not (self._ready or self._fill(rows)):
                return
            each = self._ready[-1]
            if taken and taken + each.num_sequences > most:
                return
            if not self.core.call(partial(self._start, each)):
                return
            self._ready.pop()

    def _fill(self, rows: Iterator[tuple[TableRow, Key]]) -> bool:
        """Prepare the rows of the next window, and tell whether there are any. A refused row has an answer at once."""
        num_taken = 0
        while len(self._ready) < self.window and not self.stop.is_set() and (taken := next(rows, None)) is not None:
            row, key = taken
            num_taken += 1
            try:
                self._ready.append(_Running(row, key, self.task.prepare(self.core, row, key)))
            except Exception as error:  # noqa: BLE001  (the task raises it again if it is not the row's own)
                self._note(row, key, self.task.refusal(row, key, error))
        self._ready.sort(key=lambda each: tuple(each.work.tokens), reverse=True)
        return bool(self._ready)

    def _finish(self, each: _Running) -> None:
        self._running.remove(each)
        done: list[Completion | None] = [None] * len(each.work.request.sequences)
        try:
            for piece in self.core.take(each.work.request):
                done[piece.index] = piece.done
            completions = [completion for completion in done if completion is not None]
            answer = each.work.answer(completions)
        except Exception as error:  # noqa: BLE001  (see above)
            answer = self.task.refusal(each.row, each.key, error)
        else:
            self.counts.tokens += sum(len(completion.tokens) for completion in completions)
            self.counts.prompt_tokens += len(each.work.tokens)
        self._note(each.row, each.key, answer)

    def _note(self, row: TableRow, key: Key, answer: Any) -> None:
        self.keep(row, key, answer)
        self.counts.rows += 1
        self.counts.errors += self.task.has_failed(answer)
        self.told(self.counts)

    # ---- in the engine's thread

    def _start(self, each: _Running) -> bool:
        """Queue a row if it may be queued, and tell whether it was."""
        if not self.may_queue():
            return False
        self._running.append(each)
        for sequence in each.work.scored:
            self.core.enqueue(sequence)
        if not each.work.scored:
            self._submit(each)
        return True

    def _submit(self, each: _Running) -> None:
        each.is_queued = True
        self.core.submit(each.work.request)

    def _ended(self) -> list[_Running] | None:
        """Return the rows that have ended, after each step; none of them when this is to stop."""
        self.core.check_open()
        for each in self._running:
            for sequence in each.work.scored:
                self.core.check_scored(sequence)
            if not each.is_queued and all(one.finish_reason is not None for one in each.work.scored):
                self._release(each)
                self._submit(each)
        ended = [each for each in self._running if each.has_ended]
        return ended or ([] if self.stop.is_set() else None)

    def _release(self, each: _Running) -> None:
        for sequence in each.work.scored:
            self.core.release(sequence)
        each.work.scored.clear()

    def _cancel(self, each: _Running) -> None:
        self._release(each)
        self.core.cancel(each.work.request)
