"""Make the tables of README.md, docs/index.md, docs/benchmarks.md and docs/promise.md from the rows in
benchmarks/results/.

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

from tokenmill.bench.rows import read_rows

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("index.md", "benchmarks.md", "promise.md"))]
BEGIN, END = "<!-- table: {} -->", "<!-- end of table -->"

Row = dict[str, Any]


def rows_of(name: str) -> list[Row]:
    """The rows of a results file; of points measured more than once, the last."""
    latest = {}
    for row in read_rows([RESULTS / f"{name}.jsonl"]):
        key = tuple(
            row.get(part)
            for part in ("label", "model", "cache", "dtype", "batch", "prompt", "new", "depth", "program", "scheme")
        )
        latest[key] = row
    return list(latest.values())


def markdown(header: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, figures to the right."""
    names = list(header)
    rows = [names, ["---", *["---:"] * (len(names) - 1)], *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def origin(rows: list[Row], program: str | None = None) -> str:
    """The machine and the versions with which the rows were measured."""
    row = rows[-1]
    noisy = sum(bool(other.get("noisy")) for other in rows)
    note = f"; {noisy} of {len(rows)} rows in a noisy minute" if noisy else ""
    return (
        f"\n\n*{row['processor']} ({row['instructions']}), {row['cores']} cores, {row['threads'] or 'all'} threads; "
        f"{row['dtype']}, {program or row['program'] + ' program'}; commit {row['commit']}, torch {row['torch']}, "
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
            row["dtype"] + (", the file's 4 bits" if row["scheme"] == "file" else ""),
            f"{row['prefill_tok_s']:,.1f}",
            f"{100 * row['prefill_floor_share']:.0f} %",
            f"{row['decode_tok_s']:.1f}",
            f"{100 * row['decode_floor_share']:.0f} %",
            f"{row['cache_used_mb']:.1f}",
            f"{row['ttft_ms'] / 1e3:.2f}",
        ]
        for row in rows
    ]
    header = ("numbers", "prefill tok/s", "of floor", "decode tok/s", "of floor", "cache MB", "first token s")
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


def _peer_lines(rows: list[Row]) -> Iterable[list[str]]:
    for row in rows:
        if row["status"] != "ok":
            yield [row["label"], row["test"], row["status"], *[""] * 6]
            continue
        same = row.get("same_tokens")
        yield [
            row["label"],
            row["test"],
            f"{row['decode_tok_s']:.1f}",
            _ratio(row, "decode"),
            f"{row['prefill_tok_s']:,.0f}",
            _ratio(row, "prefill"),
            "" if same is None else f"{100 * same:.0f} %",
            _accepted(row),
            f"{row['probe_gb_s']:.0f}",
        ]


def _accepted(row: Row) -> str:
    return f"{100 * row['accepted'] / row['drafted']:.0f} %" if row.get("drafted") else ""


def _ratio(row: Row, phase: str) -> str:
    if f"{phase}_ratio" not in row:
        return ""
    return f"{row[f'{phase}_ratio']:.2f} ({row[f'{phase}_ratio_min']:.2f} to {row[f'{phase}_ratio_max']:.2f})"


def peers() -> str:
    """Other engines, the same file."""
    rows = sorted(rows_of("peers"), key=lambda row: (row["prompt"], row["batch"]))
    header = ["engine", "test", "decode tok/s", "ours over", "prefill tok/s", "ours over", "same tokens"]
    header += ["drafts accepted", "probe GB/s"]
    said = dict.fromkeys(
        f"{row['label']}: {', '.join(' '.join(pair) for pair in row['versions'].items())}, {row['note']}"
        + (f", {row['variant']}" if row.get("variant") else "")
        for row in rows
        if row["status"] == "ok"
    )
    return markdown(header, _peer_lines(rows)) + "\n\n*" + ". ".join(said) + ".*" + origin(rows, "in turn")


def files() -> str:
    """Ours and llama.cpp's, on files of several kinds."""
    return _against(rows_of("files"))


def matrix_unit() -> str:
    """The same, and OpenVINO, on a processor with a matrix unit: decoding, since its prefill met the prefix cache."""
    return _against(rows_of("matrix_unit"), prefill=False)


def _against(rows: list[Row], prefill: bool = True) -> str:
    rows = sorted(rows, key=lambda row: (row["model"], row["prompt"], row["batch"]))
    by = {(row["label"], row["model"], row["test"]): row for row in rows if row["status"] == "ok"}
    others = list(dict.fromkeys(label for label, _, _ in by if label not in OURS))
    lines = []
    for (label, model, test), theirs in by.items():
        if label not in OURS:
            ours, guessing = by[OURS[0], model, test], by.get((OURS[1], model, test))
            lines.append(
                [
                    f"`{model}`, {test}" + (f", {label}" if len(others) > 1 else ""),
                    *(f"{row['decode_tok_s']:,.0f}" for row in (ours, theirs)),
                    _ratio(theirs, "decode"),
                    f"{guessing['decode_tok_s']:,.0f} ({_accepted(guessing)})" if guessing else "",
                    *(f"{row['prefill_tok_s']:,.0f}" for row in (ours, theirs) if prefill),
                    *([_ratio(theirs, "prefill")] if prefill else []),
                    f"{ours['probe_gb_s']:.0f}",
                ]
            )
    theirs = others[0] if len(others) == 1 else "theirs"
    header = ["file, test", "decode", theirs, "ratio", "speculating (accepted)"]
    header += [*(["prefill", theirs, "ratio"] if prefill else []), "probe GB/s"]
    return markdown(header, lines) + origin(rows, "in turn")


def shapes() -> str:
    """A shape that people run in several kinds of file, ours beside llama.cpp and ik_llama.cpp."""
    return _beside([(f"{file}, {name}", name, model) for name in SHAPES for file, model in FILES.items()])


def first() -> str:
    """Three of these lines."""
    picked = (("AVX2", "Q4_K_M"), ("AVX2", "Q8_0"), ("AVX-512", "Q4_K_M"))
    return _beside([(f"Llama 3.2 1B's shape, {file}, {name}", name, FILES[file]) for name, file in picked])


def _beside(wanted: list[tuple[str, str, str]]) -> str:
    by = {(name, row["model"], row["label"]): row for name in SHAPES for row in rows_of(SHAPES[name][0])}
    lines = []
    for said, name, model in wanted:
        ours, *others = (by[name, model, label] for label in ("tokenmill", SHAPES[name][1], "ik_llama.cpp"))
        line = [said]
        for phase in ("decode", "prefill"):
            line.append(f"{ours[f'{phase}_tok_s']:,.0f}")
            line += [f"{row[f'{phase}_tok_s']:,.0f} ({row[f'{phase}_ratio']:.2f} times)" for row in others]
        lines.append(line)
    header = ["tokens per second, and ours over it", "decode", "llama.cpp", "ik_llama.cpp"]
    header += ["prefill of 512", "llama.cpp", "ik_llama.cpp"]
    return markdown(header, lines) + origin(list(by.values()), "in turn")


SHAPES = {
    "AVX2": ("shapes_avx2", "llama-bench"),
    "AVX-512": ("shapes_avx512", "llama.cpp"),
}  # rows, llama.cpp's name there
FILES = {"Q4_K_M": "llama-1b-q4_k_m.gguf", "Q8_0": "llama-1b-q8_0.gguf", "Q4_0": "llama-1b-q4_0.gguf"}


def overview() -> str:
    """One line per engine: decode alone and with 16 sequences, prefill."""
    rows = [row for row in rows_of("peers") if row["prompt"] == 128]
    by = {(row["label"], row["batch"]): row for row in rows if row["status"] == "ok"}
    lines = []
    for name, computes in COMPUTES.items():
        one, many = by.get((name, 1)), by.get((name, 16))
        if one is None or many is None:
            continue
        lines.append(
            [
                f"{name}, {computes}",
                *(f"{row['decode_tok_s']:,.0f}{_short_ratio(row, 'decode')}" for row in (one, many)),
                f"{one['prefill_tok_s']:,.0f}{_short_ratio(one, 'prefill')}",
                f"{one['load_s']:.1f}",
            ]
        )
    header = ["tokens per second, and ours over it", "1 sequence", "16 together", "prefill of 128", "load s"]
    return markdown(header, lines) + origin(rows, "in turn")


OURS = ("tokenmill", "tokenmill-speculation")
COMPUTES = {
    "tokenmill": "the file's 4 bits",
    "tokenmill-speculation": "the same, guessing ahead (the default)",
    "llama.cpp": "the same, built for this processor",
    "ik_llama.cpp": "the same, repacked",
    "xllamacpp": "llama.cpp as a wheel",
    "openvino": "GenAI, int8",
    "transformers": "bfloat16",
}


def _short_ratio(row: Row, phase: str) -> str:
    return f" ({row[f'{phase}_ratio']:.1f} times)" if f"{phase}_ratio" in row else ""


def transformers() -> str:
    """Ours and transformers alone, in both dtypes."""
    rows = rows_of("transformers")
    by = {(row["label"], row["dtype"]): row for row in rows}
    lines = []
    for dtype in ("bfloat16", "float32"):
        ours, theirs = by["tokenmill", dtype], by["transformers", dtype]
        rates = [f"{row['decode_tok_s']:.1f}" for row in (ours, theirs)]
        lines.append([f"{dtype}, decode tok/s", *rates, _ratio(theirs, "decode")])
        rates = [f"{row['prefill_tok_s']:,.0f}" for row in (ours, theirs)]
        lines.append([f"{dtype}, prefill tok/s", *rates, _ratio(theirs, "prefill")])
    hashes = [f"`{by[name, 'float32']['hash']}`" for name in ("tokenmill", "transformers")]
    lines.append(["the text in float32, as a hash", *hashes, "the same" if hashes[0] == hashes[1] else "different"])
    versions = ", ".join(" ".join(pair) for pair in by["transformers", "float32"]["versions"].items())
    header = ("", "tokenmill", "transformers `generate`", "ratio (smallest to largest)")
    return markdown(header, lines) + f"\n\n*{versions}.*" + origin(rows, "in turn")


def promise() -> str:
    """Of how many texts of each server how many differ, case by case."""
    rows = [row for row in rows_of("prove") if row["model"] != RANDOM]
    lines = [[row["help"], *(_differing(other, row["case"]) for other in rows)] for row in rows[0]["cases"]]
    lines.append(["all", *(_of(row, "differ", "comparisons") for row in rows)])
    said = dict.fromkeys(", ".join(" ".join(pair) for pair in row["versions"].items()) for row in rows)
    settings = f"up to {rows[0]['max_tokens']} tokens, crowds of {rows[0]['concurrency']}, --seed {rows[0]['seed']}"
    header = ["", *(f"{row['label']} ({row['model']})" for row in rows)]
    return markdown(header, lines) + f"\n\n*{settings}; {', '.join(filter(None, said))}.*" + _checked_on(rows)


def promise_of_ours() -> str:
    """How many texts of ours were compared, and how many differ."""
    rows = [row for row in rows_of("prove") if row["label"].startswith("tokenmill")]
    lines = [
        [
            row["model"],
            f"{row['requests']:,}",
            f"{row['comparisons']:,}",
            f"{sum(case['differ'] for case in row['cases']):,}",
            f"{sum(case['logprobs_compared'] for case in row['cases']):,}",
            f"{sum(case['logprobs_differ'] for case in row['cases']):,}",
            f"{sum(case['distinct_texts'] for case in row['cases']):,}",
            f"{row['failed']:,}",
        ]
        for row in rows
    ]
    header = ["model", "requests", "texts compared", "differ", "log-probabilities of texts, as bits", "differ"]
    return markdown([*header, "distinct texts", "requests failed"], lines) + _checked_on(rows)


RANDOM = "random weights"


def _differing(row: Row, name: str) -> str:
    (case,) = [each for each in row["cases"] if each["case"] == name]
    if not case["comparisons"]:
        return "not offered" if case["not_offered"] else "not reached"
    return f"{case['differ']:,} of {case['comparisons']:,}"


def _of(row: Row, count: str, among: str) -> str:
    return f"{sum(each[count] for each in row['cases']):,} of {sum(each[among] for each in row['cases']):,}"


def _checked_on(rows: list[Row]) -> str:
    row = rows[-1]
    threads = ", ".join(sorted({str(each["threads"]) for each in rows}))
    return (
        f"\n\n*{row['processor']} ({row['instructions']}), {row['cores']} cores, {threads} threads; "
        f"commit {row['commit']}, Python {row['python']}; {row['when'][:10]}.*"
    )


TABLES: dict[str, Callable[[], str]] = {
    "cache": cache,
    "long prompt": long_prompt,
    "sweep": sweep,
    "ladder": ladder,
    "first": first,
    "shapes": shapes,
    "overview": overview,
    "peers": peers,
    "files": files,
    "matrix unit": matrix_unit,
    "transformers": transformers,
    "promise": promise,
    "promise of ours": promise_of_ours,
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
