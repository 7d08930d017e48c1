"""`tokenmill bench sweep`: every combination of batch, prompt and new tokens, a row for each."""

from dataclasses import asdict, replace
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from tokenmill.cli.bench_rows import (
    MEASURED,
    OWN,
    Check,
    Output,
    Repetitions,
    Row,
    ShapeName,
    ending,
    keep_rows,
    make_series,
    print_card,
    print_rows,
)
from tokenmill.cli.display import print_json, progress_on_stderr, remark
from tokenmill.cli.options import Json, Model, Quiet, examples, with_settings
from tokenmill.config import DEFAULT_MODEL, EngineConfig

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill bench sweep --batch 1,2,4,8 --prompt 128,512 --new 32,128 --output sweep.jsonl",
    "tokenmill bench sweep --batch 1,8,16 --prompt 256 --new 32 --no-cache --output uncached.csv",
    "tokenmill bench plot sweep.jsonl",
)

Key = tuple[int, int, int]

Counts = Annotated[str, typer.Option("--batch", "-b", help="Sequences together.", rich_help_panel=MEASURED)]
Prompts = Annotated[str, typer.Option("--prompt", "-p", help="Prompt tokens of each.", rich_help_panel=MEASURED)]
News = Annotated[str, typer.Option("--new", "-n", help="New tokens of each.", rich_help_panel=MEASURED)]


@with_settings(without=OWN, engine=EngineConfig)
def command(
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
    from tokenmill.bench.points import parse_counts, sweep
    from tokenmill.bench.rows import check_output

    counts = [parse_counts(text, option) for text, option in ((batch, "--batch"), (prompt, "--prompt"), (new, "--new"))]
    points = sweep(*counts)
    if output is not None:
        check_output(output)
    with progress_on_stderr(quiet) as progress:
        series, config = make_series(replace(engine, model=model), shape, progress, repetitions, check, "sweep")
        mark = _mark(config, repetitions)
        known = _known(output, mark)
        left = [point for point in points if _key(point) not in known]
        if known and not quiet:
            remark(f"{len(points) - len(left)} of {len(points)} points are in {output} already")
        card = print_card(series, config, points)
        rows = keep_rows(({**row, "label": mark} for row in series.rows(left, config)), output)
    rows = _in_order(points, [*known.values(), *rows])
    print_rows(f"{config.model}, medians of {repetitions}", rows)
    ending(rows)
    if json:
        print_json({"card": card, "rows": rows})
    if not any(row["status"] == "ok" for row in rows):
        remark("no point of the sweep could be measured")
        raise typer.Exit(2)


def _mark(config: EngineConfig, repetitions: int) -> str:
    """Names the settings, so that a resumed sweep takes only rows of the same ones."""
    return sha256(dumps([asdict(config), repetitions]).encode()).hexdigest()[:8]


def _known(output: Path | None, mark: str) -> dict[Key, Row]:
    """Points that the file has, measured well and with these settings."""
    from tokenmill.bench.rows import read_rows

    if output is None or not output.exists():
        return {}
    rows = read_rows([output])
    return {
        (row["batch"], row["prompt"], row["new"]): row
        for row in rows
        if row["status"] == "ok" and row["kind"] == "sweep" and row["label"] == mark
    }


def _key(point: Any) -> Key:
    return point.batch, point.prompt, point.new


def _in_order(points: list[Any], rows: list[Row]) -> list[Row]:
    """As the points were asked for."""
    found = {(row["batch"], row["prompt"], row["new"]): row for row in rows}
    return [found[_key(point)] for point in points if _key(point) in found]
