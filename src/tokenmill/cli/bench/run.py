"""`tokenmill bench`: the cost card, then prefill and generation as people name them."""

from dataclasses import replace
from pathlib import Path

from tokenmill.bench.points import Point, parse_counts, parse_tests
from tokenmill.cli.bench.rows import (
    CHECK,
    MEASURED,
    OUTPUT_FILE,
    OWN,
    REPETITIONS,
    SHAPE_NAME,
    RowFile,
    check_shape,
    ending,
    make_series,
    print_card,
    print_rows,
)
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import JSON, MODEL_NAME, QUIET, option
from tokenmill.cli.process.display import progress_on_stderr
from tokenmill.settings.engine_config import EngineConfig

EXAMPLES = (
    "tokenmill bench",
    "tokenmill bench --tests pp512,tg128 --depth 0,1000 --batch 1,4 --threads 2",
    "tokenmill bench --shape llama-1b --tests tg32 --output figures.jsonl",
)
WITHOUT = OWN


def command(
    context: Context,
    engine: EngineConfig,
    model: str = MODEL_NAME,
    shape: str | None = SHAPE_NAME,
    tests: str = option(
        "pp512,tg128", "ppN: prefill of N tokens; tgN: generation of N; ppN+tgM: both.", MEASURED, "-T"
    ),
    depth: str = option("0", "Tokens in the cache before that.", MEASURED, "-d", metavar="N,…"),
    batch: str = option("1", "Numbers of sequences that run together.", MEASURED, "-b", metavar="N,…"),
    repetitions: int = REPETITIONS,
    check: bool = CHECK,
    output: Path | None = OUTPUT_FILE,
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure one model: what it costs, what it reaches, how near to this machine's limit that is.

    Medians over repetitions with the smallest and largest, prefill and decode apart, and a hash of the tokens. Where a
    reference is known, the text is compared with transformers' first: figures of a wrong computation are not reported.
    """
    points = _points(tests, depth, batch)
    file = RowFile(output)
    check_shape(context, shape)
    with progress_on_stderr(quiet) as progress:
        series, config = make_series(replace(engine, model=model), shape, progress, repetitions, check, "bench")
        card = print_card(series, config, points, json)
        rows = file.keep(series.rows(points, config))
    if not json:
        print_rows(f"{config.model}, medians of {repetitions}", rows)
    ending(rows, json)
    file.finish(rows, {"card": card, "rows": rows} if json else None)


def _points(tests: str, depth: str, batch: str) -> list[Point]:
    depths = parse_counts(depth, "--depth", 0)
    batches = parse_counts(batch, "--batch")
    return [
        Point(prompt, new, size, before) for size in batches for before in depths for prompt, new in parse_tests(tests)
    ]
