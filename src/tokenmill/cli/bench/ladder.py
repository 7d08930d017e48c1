"""`tokenmill bench ladder`: one rung after the other, from recomputing everything to the fastest there is."""

from dataclasses import replace
from typing import Annotated

import typer

from tokenmill.bench.points import Point
from tokenmill.cli.bench.rows import (
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
)
from tokenmill.cli.parser.options import Json, Model, Quiet, examples, option, with_settings
from tokenmill.cli.process.display import print_table, progress_on_stderr, remark
from tokenmill.cli.process.imports import uninterrupted
from tokenmill.settings.engine_config import DEFAULT_MODEL, EngineConfig

EXAMPLES = examples(
    "tokenmill bench ladder",
    "tokenmill bench ladder --batch 8 --prompt 256 --new 32 --output ladder.jsonl",
    "tokenmill bench plot ladder.jsonl",
)

# A rung sets these itself.
RUNG = ("program", "scheme", "cache", "block_size", "speculate", "compile", "compile_phases", "fuse", "aot_package")


@with_settings(without=(*OWN, *RUNG), engine=EngineConfig)
def command(
    context: typer.Context,
    engine: EngineConfig,
    model: Model = DEFAULT_MODEL,
    shape: ShapeName = None,
    batch: Annotated[int, option(MEASURED, "--batch", "-b", min=1, help="Sequences that run together.")] = 1,
    prompt: Annotated[int, option(MEASURED, "--prompt", "-P", min=1, help="Prompt tokens of each sequence.")] = 256,
    new: Annotated[int, option(MEASURED, "--new", "-n", min=2, help="New tokens of each sequence.")] = 32,
    repetitions: Repetitions = 2,
    check: Check = True,
    output: Output = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """What each step up brings: no cache, a cache, pages, other programs and smaller weights, speculation.

    The same model, prompt and dtype on every rung; each with speed, memory, hash and the factor over the rung below.
    """
    point = Point(prompt, new, batch)
    file = RowFile(output)
    check_shape(context, shape)
    with progress_on_stderr(quiet) as progress:
        with uninterrupted():
            from tokenmill.bench.ladder import climb, rungs
            from tokenmill.model.families import read_config
        series, config = make_series(replace(engine, model=model), shape, progress, repetitions, check, "ladder")
        card = print_card(series, config, [point], json)
        steps = rungs(config, read_config(series.checkpoint.config))
        rows = file.keep(climb(series, config, steps, point))
    if not json:
        print_table(f"{config.model}, {point.title}, {card['dtype']}", [_line(row) for row in rows], HEADER, EXPENDABLE)
    ending(rows, json)
    for rung in steps:
        if rung.refused is not None and not quiet:
            remark(f"no rung {rung.label!r} here: {rung.refused}")
    file.finish(rows, {"card": card, "rows": rows} if json else None)


HEADER = ("rung", "tokens/s", "over below", "over first", "prefill tok/s", "total s", "of floor", "peak MB", "hash")
EXPENDABLE = ("total s", "prefill tok/s", "of floor", "peak MB", "over first")


def _line(row: Row) -> tuple[str, ...]:
    if row["status"] != "ok":
        return row["label"], row["status"], *[""] * 7
    return (
        row["label"],
        f"{row['decode_tok_s']:,.1f}",
        f"{row['over_below']:.2f}" if row["over_below"] else "",
        f"{row['over_first']:.2f}",
        f"{row['prefill_tok_s']:,.0f}",
        f"{row['total_s']:.2f}",
        f"{100 * row['decode_floor_share']:.0f} %",
        f"{row['peak_mb'] or 0:,.0f}",
        row["hash"],
    )
