"""One row per measured point: its columns, where they come from, and how rows are kept in files.

JSON lines keep everything; CSV keeps the same columns without lists. Files are appended to, a line at a time, so that
what was measured survives whatever comes after.
"""

import csv
import io
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.kernels.native_library import usable_build
from tokenmill.measure.files import check_appendable
from tokenmill.measure.machine import instruction_sets, processor
from tokenmill.version import __version__

VERSION = 1

# Times in ms, rates per second, sizes in MB (10^6), bandwidth in GB/s, arithmetic in GFLOP/s. A rate without min and
# max is the median's. decode_ms is one step of the whole batch.
COLUMNS = (
    "version kind test label model program kernel scheme dtype cache cache_format speculate device threads block_size "
    "batch prompt new depth status reason repetitions "
    "prefill_ms prefill_ms_min prefill_ms_max prefill_tok_s "
    "decode_ms decode_ms_min decode_ms_max decode_ms_per_token decode_batches_s "
    "decode_tok_s decode_tok_s_min decode_tok_s_max accepted_per_step "
    "drafted accepted mean_accepted drafting_s verifying_s accepted_histogram "
    "ttft_ms itl_p50_ms itl_p90_ms itl_p99_ms total_s sequences_s tok_s "
    "prefill_gb_s prefill_gflop_s prefill_floor_ms prefill_floor_share "
    "decode_gb_s decode_gflop_s decode_floor_ms decode_floor_share "
    "machine_read_gb_s machine_gflop_s probe_gb_s noisy "
    "load_s compile_s warmup_s weights_mb cache_mb cache_used_mb peak_mb hash text_check over_below over_first "
    "decode_ratio decode_ratio_min decode_ratio_max prefill_ratio prefill_ratio_min prefill_ratio_max same_tokens "
    "variant note text commit tokenmill torch python processor instructions cores when itl_ms build"
).split()

LISTS = ("itl_ms", "accepted_histogram")  # not in CSV

# Read back as text: "12e4" may be a hash.
_TEXTS = "build hash commit tokenmill torch python test label model reason variant note text".split()


def check_output(path: Path) -> None:
    """Raise ConfigError unless rows can be appended there; before anything is measured."""
    if path.suffix not in (".jsonl", ".json", ".csv"):
        raise ConfigError("--output", str(path), "a file that ends in .jsonl (or .json) or .csv")
    check_appendable(path, "--output")
    if path.exists() and path.stat().st_size:
        read_rows([path])


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one line; a CSV file gets its header with the first. OSError leaves the file as it was."""
    size = path.stat().st_size if path.exists() else 0
    text = io.StringIO(newline="")
    if path.suffix != ".csv":
        text.write(json.dumps(dict(row)) + "\n")
    else:
        names = _header(path) if size else [name for name in COLUMNS if name not in LISTS]
        writer = csv.DictWriter(text, names, extrasaction="ignore")
        if not size:
            writer.writeheader()
        writer.writerow(row)
    try:
        with path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())
    except OSError:
        if path.is_file():
            os.truncate(path, size)  # the beginning of a line could be read by nobody
        raise


def _header(path: Path) -> list[str]:
    """Read the columns of a CSV file, which an earlier version may have begun."""
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file))


def read_rows(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Read every row of every file, in order. TokenmillError that names file and line for a row of another program."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenmillError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        found = _from_csv(text) if path.suffix == ".csv" else _from_lines(path, text)
        for number, row in enumerate(found, start=1):
            # What `bench load` and vLLM's `bench serve` write has no version: its keys are vLLM's.
            if row.get("version") != VERSION and "output_throughput" not in row:
                what = f"row {number} has version {row.get('version')!r}; this tokenmill reads version {VERSION}"
                raise TokenmillError(f"{path}: {what}")
        rows += found
    return rows


def provenance() -> dict[str, Any]:
    """Return the columns that every row has: the code, the versions, the machine, the time."""
    return {
        "commit": commit(),
        "tokenmill": __version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "processor": processor(),
        "instructions": instruction_sets(),
        "build": usable_build(),
        "cores": os.cpu_count(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def commit() -> str | None:
    """Return the commit of this checkout, with a + when it was changed; None when tokenmill was installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    git = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=10", "--exclude=*"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603  (fixed words)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def _from_lines(path: Path, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.rstrip("\n").split("\n") if text.strip() else (), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise TokenmillError(f"{path} is no file of benchmark rows: line {number} is no JSON object")
        rows.append(row)
    return rows


def _from_csv(text: str) -> list[dict[str, Any]]:
    return [
        {name: value if name in _TEXTS else _parsed(value) for name, value in row.items() if name is not None}
        for row in csv.DictReader(text.splitlines())
    ]


def _parsed(text: str | None) -> Any:
    """Read numbers and truth values back from their text; an empty cell is None."""
    if not text:
        return None
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text
