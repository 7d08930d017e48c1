"""`tokenmill bench ladder`: one rung after the other, from recomputing everything to the fastest there is."""

from dataclasses import replace
from pathlib import Path

from tokenmill.bench.points import Point
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
)
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import JSON, MODEL_NAME, QUIET, option
from tokenmill.cli.process.display import print_table, progress_on_stderr, remark
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig

EXAMPLES = (
    "tokenmill bench ladder",
    "tokenmill bench ladder --batch 8 --prompt 256 --new 32 --output ladder.jsonl",
    "tokenmill bench plot ladder.jsonl",
)

# A rung sets these itself.
RUNG = ("program", "scheme", "cache", "block_size", "speculate", "compile", "compile_phases", "fuse", "aot_package")
WITHOUT = (*OWN, *RUNG)


def command(
    context: Context,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    shape: str | None = SHAPE_NAME,
    batch: int = option(1, "Sequences that run together.", MEASURED, "-b", minimum=1),
    prompt: int = option(256, "Prompt tokens of each sequence.", MEASURED, "-P", minimum=1),
    new: int = option(32, "New tokens of each sequence.", MEASURED, "-n", minimum=2),
    repetitions: int = replace(REPETITIONS, default=2),
    check: bool = CHECK,
    output: Path | None = OUTPUT_FILE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure what each step up brings: no cache, a cache, pages, other programs and smaller weights, speculation.

    The same model, prompt and dtype on every rung; each with speed, memory, hash and the factor over the rung below.
    """
    point = Point(prompt, new, batch)
    file = RowFile(output)
    check_shape(context, shape)
    with progress_on_stderr(quiet) as progress:
        with held_interrupts():
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
