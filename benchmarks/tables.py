"""Make the tables of README.md and docs/benchmarks.md from the rows in benchmarks/results/.

    python benchmarks/tables.py            # write them
    python benchmarks/tables.py --check    # exit code 1 when a table is not what its rows say

A table stands between `<!-- table: NAME -->` and `<!-- end of table -->`. Nobody writes a figure by hand: to change
one, measure again with the command beside the table, which appends to the file of rows, and run this.
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tokenmill.measure.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", ROOT / "docs" / "benchmarks.md"]
BEGIN, END = "<!-- table: {} -->", "<!-- end of table -->"

Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """The rows of a results file; of points measured more than once, the last."""
    latest = {}
    for row in read_rows([RESULTS / f"{name}.jsonl"]):
        key = tuple(row.get(part) for part in ("label", "cache", "dtype", "batch", "prompt", "new", "depth", "program"))
        latest[key] = row
    return list(latest.values())


def markdown(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, figures to the right."""
    names = list(header)
    rows = [names, ["---", *["---:"] * (len(names) - 1)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def origin(rows: list[Row]) -> str:
    """Where and with what the rows were measured."""
    row = rows[-1]
    noisy = sum(bool(other.get("noisy")) for other in rows)
    note = f"; {noisy} of {len(rows)} rows in a noisy minute" if noisy else ""
    return (
        f"\n\n*{row['processor']} ({row['instructions']}), {row['cores']} cores, {row['threads'] or 'all'} threads; "
        f"{row['dtype']}, {row['program']} program; commit {row['commit']}, torch {row['torch']}, "
        f"Python {row['python']}; {row['when'][:10]}{note}.*"
    )


def cache() -> str:
    """Seconds for 32 new tokens with and without the cache."""
    rows = rows_of("cache")
    by = {(row["batch"], row["cache"]): row for row in rows}
    lines = []
    for batch in sorted({row["batch"] for row in rows}):
        on, off = by[batch, True], by[batch, False]
        lines.append(
            [
                str(batch),
                f"{on['total_s']:.2f}",
                f"{off['total_s']:.2f}",
                f"{off['total_s'] / on['total_s']:.1f}",
                f"{on['peak_mb']:,.0f}",
                f"{off['peak_mb']:,.0f}",
                "the same" if on["hash"] == off["hash"] else f"{on['hash']}, {off['hash']}",
            ]
        )
    header = ("batch", "cache on, s", "off, s", "factor", "peak MB on", "off", "tokens")
    return markdown(header, lines) + origin(rows)


def long_prompt() -> str:
    """Prefill and decode of 2,037 tokens."""
    rows = rows_of("long_prompt")
    lines = [
        [
            row["dtype"],
            f"{row['prefill_tok_s']:,.1f}",
            f"{100 * row['prefill_floor_share']:.0f} %",
            f"{row['decode_tok_s']:.1f}",
            f"{100 * row['decode_floor_share']:.0f} %",
            f"{row['cache_used_mb']:.1f}",
            f"{row['ttft_ms'] / 1e3:.2f}",
        ]
        for row in rows
    ]
    header = ("dtype", "prefill tok/s", "of floor", "decode tok/s", "of floor", "cache MB", "first token s")
    return markdown(header, lines) + origin(rows)


def sweep() -> str:
    """Batch × prompt × new tokens."""
    rows = sorted(rows_of("sweep"), key=lambda row: (row["prompt"], row["new"], row["batch"]))
    lines = [
        [
            str(row["prompt"]),
            str(row["new"]),
            str(row["batch"]),
            f"{row['prefill_tok_s']:,.0f}",
            f"{row['decode_tok_s']:,.1f}",
            f"{100 * row['decode_floor_share']:.0f} %",
            f"{row['ttft_ms']:,.0f}",
            f"{row['itl_p50_ms']:.1f}",
            f"{row['itl_p99_ms']:.1f}",
            f"{row['cache_used_mb']:.1f}",
        ]
        if row["status"] == "ok"
        else [str(row["prompt"]), str(row["new"]), str(row["batch"]), row["status"], *[""] * 6]
        for row in rows
    ]
    header = ["prompt", "new", "batch", "prefill tok/s", "decode tok/s", "of floor"]
    header += ["first token ms", "gap p50 ms", "p99", "cache MB"]
    return markdown(header, lines) + origin(rows)


def ladder() -> str:
    """One change per rung."""
    rows = rows_of("ladder")
    lines = [
        [
            row["label"],
            f"{row['decode_tok_s']:.1f}",
            f"{row['over_below']:.2f}" if row["over_below"] else "",
            f"{row['over_first']:.1f}",
            f"{row['prefill_tok_s']:,.0f}",
            f"{100 * row['decode_floor_share']:.0f} %",
            f"{row['peak_mb']:,.0f}",
            f"`{row['hash']}`",
        ]
        for row in rows
    ]
    header = ("rung", "tokens/s", "over below", "over first", "prefill tok/s", "of floor", "peak MB", "tokens")
    return markdown(header, lines) + origin(rows)


TABLES: dict[str, Callable[[], str]] = {
    "cache": cache,
    "long prompt": long_prompt,
    "sweep": sweep,
    "ladder": ladder,
}


def renewed(text: str) -> str:
    """The page with every table made anew."""
    for name, make in TABLES.items():
        begin = BEGIN.format(name)
        if begin in text:
            before, _, rest = text.partition(begin)
            _, end, after = rest.partition(END)
            if not end:
                raise SystemExit(f"table {name!r} has no {END}")
            text = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = renewed(text)
        if new != text:
            stale.append(page.relative_to(ROOT))
            if not check:
                page.write_text(new, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(map(str, stale))}; run python benchmarks/tables.py")
    return int(bool(check and stale))


if __name__ == "__main__":
    sys.exit(main())
