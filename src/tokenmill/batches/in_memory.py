"""Rows that are answered in memory, without files: for programs that read, divide and write rows by themselves."""

import threading
from collections.abc import Iterable
from typing import Any

from tokenmill.batches.batch import WINDOW
from tokenmill.batches.identity import facts_of, run_of
from tokenmill.batches.row import Json, TableRow
from tokenmill.batches.runner import BatchRunner
from tokenmill.batches.task import Key, Task
from tokenmill.engine.core import Core


def answer_rows(core: Core, task: Task, rows: Iterable[Json]) -> list[Json]:
    """The rows of the output, in order: those that a batch over a file of these rows would write."""
    task.begin(core)
    run, answers = run_of(facts_of(core, task)), dict[int, Any]()

    def keep(row: TableRow, key: Key, answer: Any) -> None:
        answers[row.digest] = answer

    numbered = [TableRow(number, number + 1, values) for number, values in enumerate(rows)]
    different = {row.digest: row for row in numbered}
    runner = BatchRunner(core, task, keep, WINDOW, threading.Event())
    runner.run((row, Key(row.digest, run)) for row in different.values())
    return [task.output(row, Key(row.digest, run), answers[row.digest]) for row in numbered]
