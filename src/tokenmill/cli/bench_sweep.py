"""`tokenmill bench sweep`: every combination of batch, prompt and new tokens, a row for each."""

from dataclasses import asdict, replace
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Annotated

import typer

from tokenmill.bench.points import Point, parse_counts, sweep
from tokenmill.cli.bench_rows import (
    MEASURED,
    OWN,
    Check,
    Output,
    Repetitions,
    Row,
    RowFile,
    ShapeName,
    check_shape,
    ending,
    make_series,
    print_card,
    print_rows,
)
from tokenmill.cli.display import progress_on_stderr, remark
from tokenmill.cli.options import Json, Model, Quiet, examples, with_settings
from tokenmill.config import DEFAULT_MODEL, EngineConfig

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill bench sweep --batch 1,2,4,8 --prompt 128,512 --new 32,128 --output sweep.jsonl",
    "tokenmill bench sweep --batch 1,8,16 --prompt 256 --new 32 --no-cache --output uncached.csv",
    "tokenmill bench plot sweep.jsonl",
)

Key = tuple[int, int, int]

Counts = Annotated[
    str,
    typer.Option(
        "--batch", "-b", metavar="N,…", help="Numbers of sequences that run together.", rich_help_panel=MEASURED
    ),
]
Prompts = Annotated[
    str, typer.Option("--prompt", "-P", metavar="N,…", help="Prompt tokens of each sequence.", rich_help_panel=MEASURED)
]
News = Annotated[
    str, typer.Option("--new", "-n", metavar="N,…", help="New tokens of each sequence.", rich_help_panel=MEASURED)
]


@with_settings(without=OWN, engine=EngineConfig)
def command(
    context: typer.Context,
    engine: EngineConfig,
    model: Model = DEFAULT_MODEL,
    shape: ShapeName = None,
    batch: Counts = "1,2,4,8",
    prompt: Prompts = "128,512",
    new: News = "32,128",
    repetitions: Repetitions = 2,
    check: Check = True,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure every combination of batch, prompt and new tokens.

    A point that is refused or runs out of memory is marked and the sweep goes on. With --output a sweep that was
    interrupted resumes: points that the file already has, measured with the same settings, are not measured again.
    """
    counts = [parse_counts(text, option) for text, option in ((batch, "--batch"), (prompt, "--prompt"), (new, "--new"))]
    points = sweep(*counts)
    file = RowFile(output)
    check_shape(context, shape)
    with progress_on_stderr(quiet) as progress:
        series, config = make_series(replace(engine, model=model), shape, progress, repetitions, check, "sweep")
        mark = _mark(config, repetitions)
        known = _known(output, mark)
        left = [point for point in points if _key(point) not in known]
        if known and not quiet:
            remark(f"{len(points) - len(left)} of {len(points)} points are in {output} already")
        card = print_card(series, config, points, json)
        rows = file.keep({**row, "label": mark} for row in series.rows(left, config))
    rows = _in_order(points, [*known.values(), *rows])
    if not json:
        print_rows(f"{config.model}, medians of {repetitions}", rows)
    ending(rows, json)
    if not any(row["status"] == "ok" for row in rows):
        remark("no point of the sweep could be measured")
    file.finish(rows, {"card": card, "rows": rows} if json else None)


def _mark(config: EngineConfig, repetitions: int) -> str:
    """Names the settings, so that a resumed sweep takes only rows of the same ones."""
    return sha256(dumps([asdict(config), repetitions]).encode()).hexdigest()[:8]


def _known(output: Path | None, mark: str) -> dict[Key, Row]:
    """Points that the file has, measured well and with these settings."""
    from tokenmill.bench.rows import read_rows

    if output is None or not output.exists() or not output.stat().st_size:
        return {}
    rows = read_rows([output])
    return {
        (row["batch"], row["prompt"], row["new"]): row
        for row in rows
        if row["status"] == "ok" and row["kind"] == "sweep" and row["label"] == mark
    }


def _key(point: Point) -> Key:
    return point.batch, point.prompt, point.new


def _in_order(points: list[Point], rows: list[Row]) -> list[Row]:
    """As the points were asked for."""
    found = {(row["batch"], row["prompt"], row["new"]): row for row in rows}
    return [found[_key(point)] for point in points if _key(point) in found]
