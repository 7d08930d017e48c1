"""Progress of `tokenmill batch`: rows that are done, tokens per second, and how long the rest will take."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenmill.cli.process.display import progress_on_stderr, remark

if TYPE_CHECKING:
    from tokenmill.batches.batch import BatchProgress

SHOWN_S, LINE_S = 0.25, 30.0  # between two looks at a terminal; between two lines where stderr is none


@contextmanager
def batch_progress(note: Callable[["BatchProgress"], None]) -> Iterator[Callable[["BatchProgress"], None]]:
    """A function that shows how far a run is, now and then. note: is given all that it is told."""
    is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    begun_s = shown_s = time.monotonic()
    with progress_on_stderr(not is_shown) as bar:

        def told(progress: "BatchProgress") -> None:
            nonlocal shown_s
            note(progress)
            now_s = time.monotonic()
            if now_s - shown_s < (SHOWN_S if is_shown else LINE_S):
                return
            shown_s = now_s
            text = described(progress, now_s - begun_s)
            if is_shown:
                bar.stage(text)
                bar.advance(progress.num_done, progress.num_rows)
            else:
                remark(text)

        yield told


def described(progress: "BatchProgress", elapsed_s: float) -> str:
    """The figures in one line. The estimate takes the rows that are left to be like those of this run."""
    counts, left = progress.counts, progress.num_rows - progress.num_done
    rate = f"{counts.tokens / elapsed_s:.0f} tokens/s" if elapsed_s else ""
    rest = f", about {duration(left * elapsed_s / counts.rows)} left" if counts.rows and elapsed_s else ""
    return f"{progress.num_done:,} of {progress.num_rows:,} rows, {rate}{rest}"


def duration(seconds: float) -> str:
    """90 s, 12 min, 3 h 20 min: with as many digits as an estimate has."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
