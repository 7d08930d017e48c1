"""`tokenmill bench`: the cost card, then prefill and generation as people name them."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from tokenmill.cli.bench_rows import (
    MEASURED,
    OWN,
    Check,
    Output,
    Repetitions,
    ShapeName,
    ending,
    keep_rows,
    make_series,
    print_card,
    print_rows,
)
from tokenmill.cli.display import print_json, progress_on_stderr
from tokenmill.cli.options import Json, Model, Quiet, examples, with_settings
from tokenmill.config import DEFAULT_MODEL, EngineConfig

if TYPE_CHECKING:
    from tokenmill.bench.points import Point

__all__ = ["EXAMPLES", "command"]

EXAMPLES = examples(
    "tokenmill bench",
    "tokenmill bench --tests pp512,tg128 --depth 0,1000 --batch 1,4 --threads 2",
    "tokenmill bench --shape llama-1b --tests tg32 --output figures.jsonl",
)

Tests = Annotated[
    str,
    typer.Option(
        "--tests", "-t", help="ppN: prefill of N tokens; tgN: N new ones; ppN+tgM: both.", rich_help_panel=MEASURED
    ),
]
Depths = Annotated[
    str, typer.Option("--depth", "-d", help="Tokens in the cache before, as 0,1000.", rich_help_panel=MEASURED)
]
Batches = Annotated[
    str, typer.Option("--batch", "-b", help="Sequences at a time, as 1,4,16.", rich_help_panel=MEASURED)
]


@with_settings(without=OWN, engine=EngineConfig)
def command(
    engine: EngineConfig,
    model: Model = DEFAULT_MODEL,
    shape: ShapeName = None,
    tests: Tests = "pp512,tg128",
    depth: Depths = "0",
    batch: Batches = "1",
    repetitions: Repetitions = 3,
    check: Check = True,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure one model: what it costs, what it reaches, how near to this machine's limit that is.

    Medians over repetitions with the smallest and largest, prefill and decode apart, and a hash of the tokens. Where a
    reference is known, the text is compared with transformers' first: figures of a wrong computation are not reported.
    """
    from tokenmill.bench.rows import check_output

    points = _points(tests, depth, batch)
    if output is not None:
        check_output(output)
    with progress_on_stderr(quiet) as progress:
        series, config = make_series(replace(engine, model=model), shape, progress, repetitions, check, "bench")
        card = print_card(series, config, points)
        rows = keep_rows(series.rows(points, config), output)
    print_rows(f"{config.model}, medians of {repetitions}", rows)
    ending(rows)
    if json:
        print_json({"card": card, "rows": rows})
    if not any(row["status"] == "ok" for row in rows):
        raise typer.Exit(2)


def _points(tests: str, depth: str, batch: str) -> "list[Point]":
    from tokenmill.bench.points import Point, parse_counts, parse_tests

    depths = parse_counts(depth, "--depth", 0)
    batches = parse_counts(batch, "--batch")
    return [
        Point(prompt, new, size, before) for size in batches for before in depths for prompt, new in parse_tests(tests)
    ]
