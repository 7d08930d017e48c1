"""Output of the verbs: progress and remarks on stderr; tables, JSON and the texts of models on stdout."""

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Any, Literal, TextIO

from tokenmill.hub.progress import Progress, Silent
from tokenmill.text.json_lines import one_line

WIDTH_OF_PIPE = 200
# A control code of a model would move the cursor, change the title or fill the clipboard. \r is no line of its own.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
_CONTROLS |= {0x7F: "␡", ord("\r"): ""} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def visible(text: str) -> str:
    """Put a picture in the place of each control code, so that a terminal obeys none."""
    return text.translate(_CONTROLS)


def for_stdout(text: str) -> str:
    """Make control codes visible where stdout is a terminal; else leave the text as it is."""
    return visible(text) if sys.stdout.isatty() else text


def write_text(text: str) -> None:
    """Write a text of a model to stdout at once: unchanged in a pipe, without effect on a terminal."""
    sys.stdout.write(for_stdout(text))
    sys.stdout.flush()


def echo(text: object = "", stream: TextIO | None = None) -> None:
    """Write a line to stdout, or another stream, at once."""
    stream = stream or sys.stdout
    stream.write(f"{text}\n")
    stream.flush()


def remark(text: str) -> None:
    """Write a line to stderr. If that fails, the line is lost, and everything else goes on.

    A terminal gets it in lines of whole words: where it is narrower it would break them anywhere.
    """
    try:
        with _without_bar():
            echo(_wrapped(visible(text)) if sys.stderr.isatty() else text, sys.stderr)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _wrapped(text: str) -> str:
    """Break each line that is wider than the terminal between words; a longer word stays whole."""
    width = shutil.get_terminal_size().columns
    return "\n".join(
        "\n".join(wrap(line, width, break_long_words=False, break_on_hyphens=False)) if len(line) > width else line
        for line in text.split("\n")
    )


_wordings: list[Callable[[str], str]] = []  # of the verb that runs


@contextmanager
def worded_by(wording: Callable[[str], str]) -> Iterator[None]:
    """Pass what is logged or warned of inside through a function that knows how the user names settings."""
    _wordings.append(wording)
    try:
        yield
    finally:
        _wordings.remove(wording)


def show_logged(text: str, is_warning: bool = True) -> None:
    """Write a message of the library as a remark, in the words of the verb that runs."""
    for wording in _wordings:
        text = wording(text)
    remark(f"warning: {text}" if is_warning else text)


class _Remarks(logging.Handler):
    """Writes each log record as a remark."""

    def emit(self, record: logging.LogRecord) -> None:
        show_logged(record.getMessage(), record.levelno >= logging.WARNING)


def say_on_stderr(name: str = "tokenmill", level: int = logging.INFO) -> None:
    """Say what this package logs from here on, by default also what long work within a step is about."""
    log = logging.getLogger(name)
    if not log.handlers:
        log.addHandler(_Remarks())
        log.setLevel(level)


def print_json(document: Any) -> None:
    """Print a document as one line on stdout."""
    text = one_line(json.dumps(document, ensure_ascii=False))
    if sys.stdout.isatty():  # JSON has its own spelling for the control codes that json.dumps leaves
        text = re.sub("[\x7f-\x9f]", lambda code: f"\\u{ord(code[0]):04x}", text)
    echo(text)


def print_table(
    title: str,
    rows: Iterable[tuple[str, ...]],
    header: tuple[str, ...] = (),
    expendable: tuple[str, ...] = (),
    end: str = "",
) -> None:
    """Print names to the left, everything else to the right of them; as wide as it needs where it is piped.

    expendable: the columns that a narrow terminal does without, the first to go first.
    """
    with _without_bar():
        sys.stdout.write(table_text(title, rows, header, expendable=expendable) + end)
        sys.stdout.flush()


def table_text(
    title: str,
    rows: Iterable[tuple[str, ...]],
    header: tuple[str, ...] = (),
    justify: Literal["left", "right"] = "right",
    expendable: tuple[str, ...] = (),
) -> str:
    """Format a table; see print_table. The title is a line of its own, and no word of a cell is cut."""
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else WIDTH_OF_PIPE)
    shown = [tuple(map(for_stdout, row)) for row in rows]
    kept, lines, left_out = _fit_columns(shown, header, expendable if sys.stdout.isatty() else (), console.width)
    table = Table(box=None, show_header=bool(header))
    for place in range(max(map(len, lines), default=0)):
        side = justify if header and place else "left"
        table.add_column(kept[place] if header else "", justify=side, overflow="fold")
    for line in lines:
        table.add_row(*line)
    with console.capture() as capture:
        console.print(table)
    left = f"(no room for {', '.join(left_out)}: a wider terminal, a pipe or --json has it)\n" if left_out else ""
    return for_stdout(f"{title}\n" if title else "") + capture.get() + left


def _fit_columns(
    rows: list[tuple[str, ...]], header: tuple[str, ...], expendable: tuple[str, ...], width: int
) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    """Fit header and rows into the width, and name the columns that had to go for it; columns of the same name go
    together.

    First the names of columns are broken into lines, then the expendable columns go, as many as must.
    """
    cells = [max([0, *(len(row[at]) for row in rows if at < len(row))]) for at in range(len(header))]
    if sum(2 + max(len(name), cell) for name, cell in zip(header, cells, strict=True)) <= width:
        return list(header), rows, []
    broken = [_in_lines(name, cell) for name, cell in zip(header, cells, strict=True)]
    widths = [2 + max([cell, *map(len, name.split("\n"))]) for name, cell in zip(broken, cells, strict=True)]
    left_out: list[str] = []
    for name in expendable:
        if sum(wide for each, wide in zip(header, widths, strict=True) if each not in left_out) <= width:
            break
        left_out.append(name)
    kept = [at for at, name in enumerate(header) if name not in left_out]
    return [broken[at] for at in kept], [tuple(row[at] for at in kept if at < len(row)) for row in rows], left_out


def _in_lines(name: str, width: int) -> str:
    """Break the name of a column into lines of whole words, no wider than this if it has several words."""
    return "\n".join(wrap(name, max([width, *map(len, name.split())]), break_on_hyphens=False)) if name else ""


class _Lines(Progress):
    """A line for every stage, where stderr is no terminal."""

    def stage(self, text: str) -> None:
        remark(text)


class _Bar(Progress):
    """One bar, which the stages share."""

    def __init__(self, bars: Any) -> None:
        self.bars, self.task = bars, bars.add_task("", total=None)

    def stage(self, text: str) -> None:
        self.bars.reset(self.task, description=text, total=None)

    def advance(self, done: int, total: int) -> None:
        self.bars.update(self.task, completed=done, total=total)


_live: list[Any] = []  # what is drawn on the terminal: a bar, or the view of `serve --watch`


@contextmanager
def _without_bar() -> Iterator[None]:
    """Erase the bar meanwhile, so that lines do not run into it."""
    for bars in _live:
        bars.stop()
    try:
        yield
    finally:
        for bars in _live:
            bars.start()


def shows_bars() -> bool:
    """Tell whether stderr is a terminal that can draw bars."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def progress_on_stderr(quiet: bool = False) -> Iterator[Progress]:
    """Show a bar on a terminal, which goes away when done; plain lines elsewhere; nothing when quiet."""
    if quiet or not shows_bars():
        yield Silent() if quiet else _Lines()
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with drawn_below(Bars(*Bars.get_default_columns(), console=Console(stderr=True), transient=True)) as bars:
        yield _Bar(bars)


@contextmanager
def drawn_below(drawn: Any) -> Iterator[Any]:
    """Draw something of rich inside this context, below the lines that are written meanwhile."""
    with drawn:
        _live.append(drawn)
        try:
            yield drawn
        finally:
            _live.remove(drawn)
