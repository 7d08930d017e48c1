"""`tokenmill bench sweep`: every combination of batch, prompt and new tokens, a row for each."""

from dataclasses import asdict, replace
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.bench.points import Point, parse_counts, sweep
from tokenmill.cli.bench.rows import (
    CHECK,
    MEASURED,
    OUTPUT_FILE,
    OWN,
    REPETITIONS,
    SHAPE_NAME,
    Row,
    RowFile,
    check_shape,
    ending,
    make_series,
    print_card,
    print_rows,
)
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import JSON, MODEL_NAME, QUIET, option
from tokenmill.cli.process.display import print_table, progress_on_stderr, remark
from tokenmill.errors import ConfigError
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # imports torch
    from tokenmill.bench.series import Series

EXAMPLES = (
    "tokenmill bench sweep --batch 1,2,4,8 --prompt 128,512 --new 32,128 --output sweep.jsonl",
    "tokenmill bench sweep --batch 1,8,16 --prompt 256 --new 32 --cache on,off --output cache.jsonl",
    "tokenmill bench plot sweep.jsonl",
)

Key = tuple[int, int, int]

WITHOUT = (*OWN, "cache")


def command(
    context: Context,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    shape: str | None = SHAPE_NAME,
    batch: str = option("1,2,4,8", "Numbers of sequences that run together.", MEASURED, "-b", metavar="N,…"),
    prompt: str = option("128,512", "Prompt tokens of each sequence.", MEASURED, "-P", metavar="N,…"),
    new: str = option("32,128", "New tokens of each sequence.", MEASURED, "-n", metavar="N,…"),
    caches: str = option(
        "on",
        "With the KV cache (on), without it (off), or both in one table (on,off).",
        MEASURED,
        "--cache",
        metavar="WORDS",
    ),
    no_cache: bool = option(False, "The same as --cache off.", MEASURED),
    repetitions: int = replace(REPETITIONS, default=2),
    check: bool = CHECK,
    output: Path | None = OUTPUT_FILE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure every combination of batch, prompt and new tokens.

    A point that is refused or runs out of memory is marked and the sweep goes on. With --output a sweep that was
    interrupted resumes: points that the file already has, measured with the same settings, are not measured again.
    """
    counts = [parse_counts(text, option) for text, option in ((batch, "--batch"), (prompt, "--prompt"), (new, "--new"))]
    points, with_cache = sweep(*counts), [False] if no_cache else _caches(caches)
    file = RowFile(output)
    check_shape(context, shape)
    with progress_on_stderr(quiet) as progress:
        series, config = make_series(replace(engine, model=model), shape, progress, repetitions, check, "sweep")
        configs = [replace(config, cache=is_on) for is_on in with_cache]
        plans = [_Plan(each, _mark(each, repetitions), points, output) for each in configs]
        if (known := sum(len(plan.known) for plan in plans)) and not quiet:
            remark(f"{known} of {len(points) * len(plans)} points are in {output} already")
        card = print_card(series, configs[0], points, json)
        rows = [row for plan in plans for row in plan.rows(series, file)]
    if not json:
        print_rows(f"{config.model}, medians of {repetitions}", rows)
    if len(plans) > 1 and not json:
        _print_caches(points, rows)
    ending(rows, json)
    if not any(row["status"] == "ok" for row in rows):
        remark("no point of the sweep could be measured")
    file.finish(rows, {"card": card, "rows": rows} if json else None)


def _caches(text: str) -> list[bool]:
    """Parse "on,off" into [True, False]."""
    words = [word.strip() for word in text.split(",")]
    if not set(words) <= {"on", "off"}:
        raise ConfigError("--cache", text, "on, off, or on,off")
    return [word == "on" for word in dict.fromkeys(words)]


class _Plan:
    """The points of one configuration: some are in the file already, the others are left to measure."""

    def __init__(self, config: EngineConfig, mark: str, points: list[Point], output: Path | None) -> None:
        self._config, self._mark, self._points = config, mark, points
        self.known = {key: row for key, row in _known(output, mark).items() if key in map(_key, points)}

    def rows(self, series: "Series", file: RowFile) -> list[Row]:
        """Return every row, in the order of the points."""
        left = [point for point in self._points if _key(point) not in self.known]
        measured = file.keep({**row, "label": self._mark} for row in series.rows(left, self._config))
        return _in_order(self._points, [*self.known.values(), *measured])


CACHES = ("batch", "prompt", "new", "cache on, s", "off, s", "factor", "peak MB", "off, MB", "tokens", "text")


def _print_caches(points: list[Point], rows: list[Row]) -> None:
    """Print what the cache saves: seconds for all sequences together, and the memory of the process at its peak."""
    by = {(row["cache"], row["batch"], row["prompt"], row["new"]): row for row in rows if row["status"] == "ok"}
    lines = []
    for point in points:
        on, off = by.get((True, *_key(point))), by.get((False, *_key(point)))
        if on is None or off is None:
            continue
        figures = f"{on['total_s']:.2f}", f"{off['total_s']:.2f}", f"{off['total_s'] / on['total_s']:.1f}"
        memory = [f"{row['peak_mb'] or 0:,.0f}" for row in (on, off)]
        same = "the same" if on["hash"] == off["hash"] else f"{on['hash']}, {off['hash']}"
        lines.append((*map(str, _key(point)), *figures, *memory, same, repr(on.get("text") or "")))
    if lines:
        print_table("\nWith the KV cache and without", lines, CACHES, ("text", "off, MB", "new"))


def _mark(config: EngineConfig, repetitions: int) -> str:
    """Name the settings, so that a resumed sweep takes only rows of the same settings."""
    return sha256(dumps([asdict(config), repetitions]).encode()).hexdigest()[:8]


def _known(output: Path | None, mark: str) -> dict[Key, Row]:
    """Return the points that the file has, measured well and with these settings."""
    from tokenmill.bench.rows import read_rows

    if output is None or not output.exists() or not output.stat().st_size:
        return {}
    return {
        (row["batch"], row["prompt"], row["new"]): row
        for row in read_rows([output])
        if row["status"] == "ok" and row["kind"] == "sweep" and row["label"] == mark
    }


def _key(point: Point) -> Key:
    return point.batch, point.prompt, point.new


def _in_order(points: list[Point], rows: list[Row]) -> list[Row]:
    found = {(row["batch"], row["prompt"], row["new"]): row for row in rows}
    return [found[_key(point)] for point in points if _key(point) in found]
