"""What the verbs show: progress and remarks on stderr, tables and JSON on stdout."""

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import typer

from tokenmill.hub.progress import Progress, Silent

__all__ = [
    "print_json",
    "print_table",
    "progress_on_stderr",
    "remark",
    "say_on_stderr",
    "table_text",
]


def remark(text: str) -> None:
    """One line on stderr. If that cannot be written, the line is lost, and everything else goes on."""
    try:
        typer.echo(text, err=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


class _Remarks(logging.Handler):
    """What is logged, as remarks."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        remark(("warning: " if record.levelno >= logging.WARNING else "") + record.getMessage())


def say_on_stderr(name: str = "tokenmill", level: int = logging.INFO) -> None:
    """From here on, what this package logs is said: by default also what long work within a step is about."""
    log = logging.getLogger(name)
    if not log.handlers:
        log.addHandler(_Remarks())
        log.setLevel(level)


def print_json(document: Any) -> None:
    """One line on stdout."""
    typer.echo(json.dumps(document, ensure_ascii=False))


def print_table(title: str, rows: Iterable[tuple[str, ...]], header: tuple[str, ...] = ()) -> None:
    """Names to the left, everything else to the right of them; as wide as it needs where it is piped."""
    typer.echo(table_text(title, rows, header), nl=False)


def table_text(
    title: str,
    rows: Iterable[tuple[str, ...]],
    header: tuple[str, ...] = (),
    justify: Literal["left", "right"] = "right",
) -> str:
    """See print_table. The title is a line of its own, however narrow the table is."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=bool(header))
    width = 0
    for row in rows:
        while width < len(row):
            table.add_column(header[width] if header else "", justify=justify if header and width else "left")
            width += 1
        table.add_row(*row)
    width_of_pipe = None if sys.stdout.isatty() else 200
    console = Console(markup=False, highlight=False, width=width_of_pipe)
    with console.capture() as capture:
        console.print(table)
    return f"{title}\n{capture.get()}" if title else capture.get()


class _Lines(Progress):
    """A line for every stage, where stderr is no terminal."""

    def stage(self, text: str) -> None:
        """See Progress."""
        remark(text)


class _Bar(Progress):
    """One bar, which the stages share."""

    def __init__(self, bars: Any) -> None:
        self.bars, self.task = bars, bars.add_task("", total=None)

    def stage(self, text: str) -> None:
        """See Progress."""
        self.bars.reset(self.task, description=text, total=None)

    def advance(self, done: int, total: int) -> None:
        """See Progress."""
        self.bars.update(self.task, completed=done, total=total)


@contextmanager
def progress_on_stderr(quiet: bool = False) -> Iterator[Progress]:
    """A bar on a terminal, which goes away when done; plain lines elsewhere; nothing when quiet."""
    if quiet or not sys.stderr.isatty():
        yield Silent() if quiet else _Lines()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(*Bars.get_default_columns(), console=Console(stderr=True), transient=True) as bars:
        yield _Bar(bars)
