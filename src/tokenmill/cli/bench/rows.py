"""Options, tables and rows that the verbs of `bench` share."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.cli.models import find_checkpoint
from tokenmill.cli.parser.command import Context
from tokenmill.cli.parser.options import MODEL, OUTPUT, option
from tokenmill.cli.process.display import echo, print_json, print_table, remark
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:  # these import torch
    from tokenmill.bench.series import Series
    from tokenmill.weights.checkpoint import Checkpoint

MEASURED = "What is measured"
# These follow from the point, or would change in the midst of it.
PREFIX = ("prefix_cache", "prefix_dir", "prefix_limit", "fingerprint", "packed_cache", "packed_limit")
OWN = (
    "tokenizer",
    "max_sequences",
    "max_waiting",
    *PREFIX,
    "suffix_dir",
    "suffix_limit",
    "compile_in_background",
    "aot_fallback",
)

SHAPE_NAME = option(
    None,
    "An architecture with random weights in place of MODEL, no files needed: llama-1b, llama-7b, llama-8b, "
    "smollm2-135m, pythia-160m, … (any wrong name lists them all). NAME:4 has 4 layers.",
    MODEL,
    metavar="NAME",
)
REPETITIONS = option(3, "Measurements of each point, after one to warm up.", MEASURED, "-r", minimum=1)
OUTPUT_FILE = option(None, "Append rows to this .jsonl or .csv file.", OUTPUT, "-o", metavar="FILE")
CHECK = option(
    True,
    "First compare greedy text with transformers', where a reference is known; a difference is an error.",
    MEASURED,
)

Row = dict[str, Any]


def check_shape(context: Context, shape: str | None) -> None:
    """Refuse a shape beside a MODEL with ConfigError."""
    if shape is not None and "model" in context.origins:
        raise ConfigError("--shape", shape, f"in the place of MODEL, which is {context.values['model']!r}: give one")


def make_series(
    engine: EngineConfig, shape: str | None, progress: Progress, repetitions: int, check: bool, kind: str
) -> tuple["Series", EngineConfig]:
    """Make the series of a model or a shape; the config gets its name."""
    with held_interrupts():
        from tokenmill.bench.series import Series
        from tokenmill.bench.shapes import find_shape

    if shape is not None:
        checkpoint: Checkpoint = find_shape(shape)
        engine = replace(engine, model=f"shape:{shape}")
    else:
        checkpoint = find_checkpoint(engine.model, progress)
    return Series(checkpoint, progress, repetitions=repetitions, check=check, kind=kind), engine


def print_card(series: "Series", engine: EngineConfig, points: Sequence[Any], json: bool) -> dict[str, Any]:
    """Measure the machine if need be, and return the cost card, printed unless the document is to hold it."""
    from tokenmill.bench.card import card_of, card_rows
    from tokenmill.model.families import read_config

    model = read_config(series.checkpoint.config)
    longest = max(point.length for point in points)
    planned = replace(engine, max_length=engine.max_length or min(max(longest, 1), model.context))
    card = card_of(planned, model, series.limits(engine), points, series.checkpoint.num_bytes)
    if not json:
        print_table(f"{engine.model}: what it costs", card_rows(card), end="\n")
    return card


class RowFile:
    """Keeps the rows of a run: each is appended to a file as it comes, if one was given.

    What was measured survives whatever comes after. Rows that the file does not take are printed by `finish`.
    """

    def __init__(self, output: Path | None) -> None:
        """Raise ConfigError, before anything is measured, for a file that rows cannot be appended to."""
        with held_interrupts():
            from tokenmill.bench.rows import check_output
        if output is not None:
            check_output(output)
        self._output = output
        self._unsaved: list[Row] = []
        self._reason: str | None = None

    def keep(self, rows: Iterable[Row]) -> list[Row]:
        """Save every row as it comes, and return all."""
        kept = []
        for row in rows:
            self._save(row)
            kept.append(row)
        return kept

    def _save(self, row: Row) -> None:
        from tokenmill.bench.rows import append_row

        if self._output is None:
            return
        try:
            append_row(self._output, row)
        except OSError as error:
            self._reason = error.strerror
            self._unsaved.append(row)

    def finish(self, rows: Sequence[Row], document: dict[str, Any] | None = None) -> None:
        """Print the document, which has all rows, or rows that were not saved. Exit code 2 if something is missing."""
        if self._unsaved:
            remark(f"error: {self._output} cannot be written ({self._reason}): the rows that it lacks are on stdout")
        for one in self._unsaved if document is None else [document]:
            print_json(one)
        if self._unsaved or not any(row["status"] == "ok" for row in rows):
            sys.exit(2)


HEADER = ("test", "tokens/s", "min to max", "ms", "GB/s", "GFLOP/s", "of floor", "itl p50 p90 p99", "cache MB", "hash")
EXPENDABLE = ("GFLOP/s", "GB/s", "cache MB", "itl p50 p90 p99", "ms", "min to max")


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """Print a line for each phase of each row, with its figures and its distance from the floor."""
    lines = [line for row in rows for line in lines_of(row)]
    print_table(title, lines, HEADER, EXPENDABLE)


def lines_of(row: Row) -> list[tuple[str, ...]]:
    """Return the table's lines of one row: prefill and decode, or one line with the status of a row without figures."""
    if row["status"] != "ok":
        return [(row["test"], row["status"], *[""] * (len(HEADER) - 2))]
    lines = []
    at = f" x{row['batch']}" if row["batch"] > 1 else ""
    if row.get("prefill_tok_s"):
        tokens = row["prefill_tok_s"] * row["prefill_ms"]
        spread = f"{tokens / row['prefill_ms_max']:,.0f} to {tokens / row['prefill_ms_min']:,.0f}"
        before = f" @ d{row['depth']}" if row["depth"] else ""
        lines.append(_line(row, "prefill", f"pp{row['prompt']}{before}{at}", spread))
    if row.get("decode_tok_s") and row["new"]:
        spread = f"{row['decode_tok_s_min']:,.1f} to {row['decode_tok_s_max']:,.1f}"
        lines.append(_line(row, "decode", f"tg{row['new']} @ d{row['depth'] + row['prompt']}{at}", spread))
    return lines


def _line(row: Row, phase: str, name: str, spread: str) -> tuple[str, ...]:
    shares = [row.get(f"itl_p{share}_ms") for share in (50, 90, 99)]
    gaps = " ".join(f"{ms:.1f}" for ms in shares if ms is not None) if phase == "decode" else ""
    return (
        name,
        f"{row[f'{phase}_tok_s']:,.1f}",
        spread,
        f"{row[f'{phase}_ms']:,.1f}",
        f"{row[f'{phase}_gb_s']:,.1f}",
        f"{row[f'{phase}_gflop_s']:,.0f}",
        f"{100 * row[f'{phase}_floor_share']:.0f} %",
        gaps,
        f"{row['cache_used_mb']:,.1f}",
        row["hash"],
    )


def ending(rows: Sequence[Row], json: bool) -> None:
    """Print the lines under the table, if there is one: memory, preparation, the text check. On stderr, say how far
    the figures of this minute can be trusted."""
    from tokenmill.speculate.speculation import described

    good = [row for row in rows if row["status"] == "ok"]
    if good and not json:
        last = good[-1]
        peak = max(row["peak_mb"] or 0.0 for row in good)
        prepared = f"load {last['load_s']:.1f} s, compile {last['compile_s']:.1f} s, warm-up {last['warmup_s']:.1f} s"
        echo(f"memory: weights {last['weights_mb']:,.0f} MB, process peak {peak:,.0f} MB · {prepared}")
        how = f"{last['program']}, scheme {last['scheme']}, kernel {last['kernel']}, {last['dtype']}"
        echo(f"{how} · tokenmill {last['commit'] or last['tokenmill']}, torch {last['torch']}")
        echo(f"text check: {last['text_check']}")
        for row in good:
            if row.get("drafted"):
                # The label of a sweep's row is the digest by which the sweep resumes.
                name = row["test"] if row["kind"] == "sweep" else row["label"] or row["test"]
                echo(f"{name}: {described(row)}")
    if any(row["noisy"] for row in good):
        probes = [row["probe_gb_s"] for row in good]
        remark(
            f"the machine was noisy (read bandwidth {min(probes):.0f} to {max(probes):.0f} GB/s, or repetitions far "
            "apart): compare only what was measured in one run, and look at min and max"
        )
    for row in rows:
        if row["status"] != "ok":
            remark(f"{row['test']}: {row['status']}: {row['reason']}")
