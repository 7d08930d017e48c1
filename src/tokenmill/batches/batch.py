"""A batch: an input, an output and its journal, from the first reading to the file that is written whole.

    with opened(source, target, task) as batch:      # reads the input once, and takes the lock; no model is needed yet
        summary = batch.run(core)

The output and every answer are a function of the input, the model and the settings: how often a run was broken off,
what was computed with what, and how rows are divided among shards changes no byte.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenmill.batches.formats import format_of
from tokenmill.batches.journal import Journal, journal_path
from tokenmill.batches.output import WAY_OUT, Shard, rows_of, run_of_output, write
from tokenmill.batches.row import Json, TableRow
from tokenmill.batches.runner import BatchRunner, Counts
from tokenmill.batches.scan import Index, scan
from tokenmill.batches.task import Key, Task
from tokenmill.engine.core import Core
from tokenmill.errors import RequestError
from tokenmill.memory.atomic_file import make_folder
from tokenmill.memory.file_lock import NO_LOCKS, locked_file

WINDOW = 1024


def facts_of(core: Core, task: Task) -> Json:
    """Gather the facts that the answers depend on: the model by the digests of its files, what computes it, and the
    settings of the task. Nothing of it says how many rows run together, in how many threads, or where the model lies.
    """
    loaded = core.loaded
    model = {name: value for name, value in loaded.compatibility.items() if name != "model"}
    template = loaded.tokenizer.chat_template if loaded.tokenizer is not None else None
    model["chat_template"] = None if template is None else sha256(str(template).encode()).hexdigest()[:16]
    if core.adapters is not None and core.adapters.of_settings:
        model["adapters"] = {each.name: each.digest.hex() for each in core.adapters.of_settings}
    return {"model": model, "longest_text": loaded.resolved.longest_text, "task": task.facts(core)}


def run_of(facts: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits that stand for facts, and stand in every key."""
    return sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:8]


@dataclass(frozen=True)
class BatchProgress:
    """The progress of a run. num_rows: of the shard; num_done: also earlier ones; counts: of this run."""

    num_rows: int
    num_done: int
    counts: Counts


@dataclass(frozen=True)
class How:
    """Choices of a run that change no answer. window, stop, may_queue, most: see BatchRunner. told: gets the
    BatchProgress after each answer. keeps_part: asked when a run was stopped: True writes the output with the rows that
    are done, and the others are left out.
    """

    window: int = WINDOW
    stop: threading.Event = field(default_factory=threading.Event)
    may_queue: Callable[[], bool] = lambda: True
    told: Callable[[BatchProgress], None] = lambda _: None
    most: int | None = None
    keeps_part: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Summary:
    """The outcome of a run. num_known: rows whose answers were there before, or are the answers of equal rows.
    num_errors: answers that are errors. was_there: the output had been written before.
    """

    num_rows: int
    num_computed: int = 0
    num_errors: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    elapsed_s: float = 0.0
    was_there: bool = False
    is_whole: bool = True

    @property
    def num_known(self) -> int:
        """Rows that were not computed in this run."""
        return self.num_rows - self.num_computed

    @property
    def tokens_per_s(self) -> float:
        """New tokens over the time of the run."""
        return self.tokens / self.elapsed_s if self.elapsed_s else 0.0


class OutputTaken(RequestError):
    """Another process, or another batch of this one, writes the same output."""


@contextmanager
def opened(source: Path, target: Path, task: Task, shard: Shard = Shard()) -> Iterator["Batch"]:  # noqa: B008
    """Open a batch whose output belongs to this process inside the context. RequestError for an input or an output that
    cannot be used, and where another process writes the same output.
    """
    format_of(source, "input")
    format_of(target, "output")
    try:
        index = scan(source, task.id_field)
        make_folder(target.parent)
    except OSError as error:
        raise RequestError(f"{error.filename or source} cannot be used: {error.strerror or error}") from None
    task.check(index.columns)
    target = shard.path(target)
    if source.exists() and target.exists() and source.samefile(target):
        raise RequestError(f"{target} is the input: {WAY_OUT}")
    journal = journal_path(target)
    with ExitStack() as held:
        try:
            file = held.enter_context(locked_file(journal))
        except OSError as error:
            why = "its file system has no locks" if error.errno in NO_LOCKS else error.strerror
            raise RequestError(f"{journal} cannot be used: {why}") from None
        if file is None:
            raise OutputTaken(f"another process writes {target}: wait for its end, or give another output")
        try:
            yield Batch(index, target, task, shard, journal, file, run_of_output(target, index, shard, task))
        finally:
            if journal.exists() and not journal.stat().st_size:  # the lock has made it, and nothing was begun
                journal.unlink()


@dataclass(eq=False)
class Batch:
    """A batch that `opened` has made. written: the digits of the run that wrote the output, if there is one already."""

    index: Index
    target: Path
    task: Task
    shard: Shard
    journal_path: Path
    file: IO[bytes]
    written: str | None

    @property
    def num_rows(self) -> int:
        """Rows of the shard."""
        return len(range(self.shard.number - 1, self.index.num_rows, self.shard.count))

    def forget(self) -> None:
        """Begin anew: what the journal holds is deleted."""
        os.ftruncate(self.file.fileno(), 0)

    def run(self, core: Core, how: How = How()) -> Summary:
        """Compute what is not there yet, and write the output; with `how.stop` set only a part of it."""
        self.task.begin(core)
        facts = facts_of(core, self.task)
        run = run_of(facts)
        if self.written is not None:
            return self._was_there(run, facts)
        journal = Journal(self.journal_path, self.file, self.index, facts)
        try:
            return self._run(core, run, journal, how)
        finally:
            try:
                journal.sync()
            finally:
                journal.close()

    def _run(self, core: Core, run: str, journal: Journal, how: How) -> Summary:
        begun_s, places = time.monotonic(), self.index.places
        mine = places[self.shard.number - 1 :: self.shard.count]
        num_known = int((journal.offsets[mine] >= 0).sum())

        def keep(row: TableRow, key: Key, answer: Any) -> None:
            journal.append(int(places[row.number]), key.digest, answer)

        def tell(counts: Counts) -> None:
            how.told(BatchProgress(self.num_rows, min(num_known + counts.rows, self.num_rows), counts))

        runner = BatchRunner(core, self.task, keep, how.window, how.stop, how.may_queue, tell, how.most)
        tell(runner.counts)
        runner.run(self._left(journal, run))
        counts, num_errors = runner.counts, 0
        is_whole = bool((journal.offsets[mine] >= 0).all())
        if is_whole or how.keeps_part():
            num_errors = self._write(journal, run)
            journal.remove()
        elapsed_s = time.monotonic() - begun_s
        tokens = counts.tokens, counts.prompt_tokens
        return Summary(self.num_rows, counts.rows, num_errors, *tokens, elapsed_s, is_whole=is_whole)

    def _left(self, journal: Journal, run: str) -> Iterator[tuple[TableRow, Key]]:
        """Yield the rows that have no answer; of equal rows the first."""
        places = self.index.places
        is_taken = np.zeros(len(journal.offsets), np.bool_)
        for row in rows_of(self.index, self.shard):
            place = int(places[row.number])
            if journal.offsets[place] < 0 and not is_taken[place]:
                is_taken[place] = True
                yield row, Key(row.digest, run)

    def _write(self, journal: Journal, run: str) -> int:
        """Write the output, and return the number of answers in it that are errors."""
        num_errors = 0

        def rows() -> Iterator[Json]:
            nonlocal num_errors
            for row in rows_of(self.index, self.shard):
                if journal.offsets[place := int(self.index.places[row.number])] < 0:
                    continue  # of a run that was stopped for good
                answer = journal.read(place)
                num_errors += self.task.has_failed(answer)
                yield self.task.output(row, Key(row.digest, run), answer)

        write(self.target, self.task.columns(self.index.columns), rows())
        return num_errors

    def _was_there(self, run: str, facts: Json) -> Summary:
        """Check an output that is there already, and remove a journal of the same run that was not removed yet."""
        if self.written != run:
            raise RequestError(f"{self.target} exists, and comes from another model or other settings: {WAY_OUT}")
        with suppress(RequestError):  # one of other settings is not ours to delete
            journal = Journal(self.journal_path, self.file, self.index, facts)
            journal.close()
            journal.remove()
        return Summary(self.num_rows, was_there=True)


def answer_rows(core: Core, task: Task, rows: Iterable[Json]) -> list[Json]:
    """Answer rows in memory, without files, for programs that read, divide and write rows by themselves; return the
    rows that a batch over a file of these rows would write, in order.
    """
    task.begin(core)
    run, answers = run_of(facts_of(core, task)), dict[int, Any]()

    def keep(row: TableRow, key: Key, answer: Any) -> None:
        answers[row.digest] = answer

    numbered = [TableRow(number, number + 1, values) for number, values in enumerate(rows)]
    different = {row.digest: row for row in numbered}
    runner = BatchRunner(core, task, keep, WINDOW, threading.Event())
    runner.run((row, Key(row.digest, run)) for row in different.values())
    return [task.output(row, Key(row.digest, run), answers[row.digest]) for row in numbered]
