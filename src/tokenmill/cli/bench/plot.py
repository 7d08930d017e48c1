"""`tokenmill bench plot`: result files in, pictures out."""

from pathlib import Path

from tokenmill.cli.parser.options import JSON, OUTPUT, QUIET, argument, option
from tokenmill.cli.process.display import echo, print_json, remark
from tokenmill.memory.interrupts import held_interrupts

EXAMPLES = (
    "tokenmill bench sweep --output sweep.jsonl && tokenmill bench plot sweep.jsonl",
    "tokenmill bench plot before.jsonl after.csv -o pictures",
)


def command(
    file: list[Path] = argument(..., "FILE", "Results of `tokenmill bench --output`, .jsonl or .csv.", "Results"),
    output: Path = option(Path("plots"), "Where the pictures go.", OUTPUT, "-o", metavar="DIR"),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Draw results: curves over batch and prompt, roofline, ladder.

    Each picture for which the files have data is written as PNG and SVG; stderr names the pictures that were left out,
    and why. Needs matplotlib: pip install 'tokenmill[bench]'.
    """
    with held_interrupts():
        from tokenmill.bench.plot import draw
        from tokenmill.bench.rows import read_rows

    rows = read_rows(file)
    drawn = draw(rows, output, "--output")
    if json:
        print_json({"written": [str(path) for path in drawn.written], "left_out": drawn.left_out})
    else:
        for path in drawn.written:
            echo(path)
    if not quiet:
        for name, reason in drawn.left_out.items():
            remark(f"left out {name}: {reason}")
