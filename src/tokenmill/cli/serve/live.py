"""The live view of `serve --watch`: each text that runs or waits, how fast it grows, and what the cache had of it."""

import threading
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager, suppress
from functools import partial
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenmill.cli.process.display import drawn_below, shows_bars, visible
from tokenmill.errors import ConfigError, RequestError
from tokenmill.units import counted

if TYPE_CHECKING:  # these import torch
    from tokenmill.schedule.sequence import Sequence
    from tokenmill.serve.start.server import Served

LOOK_S = 0.5
"""Seconds between two readings of the engine: a step of a large model takes 0.1 s, and nobody reads a table faster."""

LATEST = 32
"""Tokens over which the speed of a text is measured: few, so that the speed of a text that stalls falls at once."""

WRITES = "writes"
HEADER = ("text", "state", "prompt", "found", "new", "tokens/s", "seconds")


class TextRow(NamedTuple):
    """One text. found: the prompt tokens that the cache had. new: tokens of the answer. per_s: of the latest ones."""

    name: str
    state: str
    prompt: int
    found: int
    new: int
    per_s: float
    seconds: float


class Glance(NamedTuple):
    """One model at one moment. used: the part of the cache's blocks that texts hold. waiting: the number of rows that
    have no place yet."""

    model: str
    rows: list[TextRow]
    waiting: int
    used: float


def check_watch(is_watched: bool, replicas: int) -> None:
    """Refuse `--watch` where stderr is no terminal, and where the engines are replicas in other processes."""
    if is_watched and not shows_bars():
        raise ConfigError("watch", True, "only where stderr is a terminal; /metrics has figures for other programs")
    if is_watched and replicas > 1:
        raise ConfigError("watch", True, "only without --replicas, which are processes of their own; see /metrics")


def look(served: "Served") -> Glance:
    """Read the texts of an engine. Called in its thread."""
    core, answers, rows = served.engine.core, served.driver.answers, list[TextRow]()
    now_s, scheduler = core.loop.clock(), core.scheduler
    for sequence in (*scheduler.running, *scheduler.waiting):
        name, tracker = answers.get(sequence.id) or f"text {sequence.id}", core.trackers.get(sequence.id)
        times_s, begun_s = (tracker.times_s, tracker.started_s) if tracker is not None else ([], now_s)
        prompt, found = sequence.num_prompt_tokens, sequence.num_cached_tokens or 0
        new, state = len(sequence.tokens) - prompt, _state(sequence, sequence in scheduler.running)
        rows.append(TextRow(name, state, prompt, found, new, _per_s(times_s, now_s), now_s - begun_s))
    used = core.num_used_blocks / scheduler.allocator.num_blocks
    return Glance(served.service.options.name, rows, len(scheduler.waiting), used)


def _state(sequence: "Sequence", runs: bool) -> str:
    done = sequence.kept.num_computed
    if not runs:
        return "waits" if sequence.num_cached_tokens is None else "waits again"
    return WRITES if done >= sequence.num_prompt_tokens else f"reads {done / sequence.num_prompt_tokens:.0%}"


def _per_s(times_s: List[float], now_s: float) -> float:
    """Tell how many tokens a second came since the first of the latest ones."""
    latest = times_s[-LATEST:]
    return (len(latest) - 1) / max(now_s - latest[0], 1e-9) if latest else 0.0


def drawn(looks: List[Glance], lines: int) -> Any:
    """Make the table of these models in this number of lines, for rich."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = [Text(_summary(each), overflow="ellipsis", no_wrap=True) for each in looks] or [Text("no model is loaded")]
    rows, table = [row for each in looks for row in each.rows], Table(box=None, pad_edge=False)
    for name in HEADER if rows else ():
        table.add_column(name, justify="left" if name in HEADER[:2] else "right", no_wrap=True)
    room = max(lines - len(head) - 3, 1)
    for row in rows[:room]:
        figures = f"{row.prompt:,}", f"{row.found:,}", f"{row.new:,}", f"{row.per_s:,.1f}", f"{row.seconds:,.1f}"
        table.add_row(Text(visible(row.name)), row.state, *figures)
    if len(rows) > room:
        table.add_row(f"and {counted(len(rows) - room, 'more text')}")
    return Group(*head, *[table] * bool(rows))


def _summary(each: Glance) -> str:
    running = len(each.rows) - each.waiting
    per_s = sum(row.per_s for row in each.rows if row.state == WRITES)
    prompt = sum(row.prompt for row in each.rows)
    found = f", {sum(row.found for row in each.rows) / prompt:.0%} of prompts found" if prompt else ""
    return (
        f"{visible(each.model)}: {running} running, {each.waiting} waiting, {per_s:,.1f} tokens/s, "
        f"cache {each.used:.0%}{found}"
    )


@contextmanager
def live_view(is_watched: bool, served: "Callable[[], List[Served]]") -> Iterator[None]:
    """Draw the texts of these engines on stderr inside this context, below the lines that are written meanwhile."""
    if not is_watched:
        yield
        return
    from rich.console import Console
    from rich.live import Live

    live, stop = Live(console=Console(stderr=True), transient=True, auto_refresh=False), threading.Event()

    def follow() -> None:
        while not stop.wait(LOOK_S):
            looks = []
            for each in served():
                with suppress(RequestError):  # it has been closed
                    looks.append(each.engine.core.call(partial(look, each)))
            live.update(drawn(looks, get_terminal_size().lines), refresh=True)

    thread = threading.Thread(target=follow, name="live view", daemon=True)  # a step that hangs has no end
    with drawn_below(live):
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(2 * LOOK_S)
