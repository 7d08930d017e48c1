"""Result rows sorted into the lines of a picture, and the words for what tells the lines apart.

A row is a flat dict (see `tokenmill.bench.rows`); any key may be missing. What all rows of a picture share goes into
its title, what differs names its lines: no more fields than are needed to keep the lines apart. Knows no matplotlib.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

Row = Mapping[str, Any]
SHAPE = ("prompt", "new", "depth", "batch")

# Field → how its value reads in a legend. The order decides which of two fields that differ together is named.
_WORDS = {
    "label": "{}",
    "model": "{}",
    "prompt": "prompt {}",
    "new": "new {}",
    "depth": "depth {}",
    "batch": "batch {}",
    "program": "{}",
    "scheme": "{}",
    "dtype": "{}",
    "cache_format": "{} cache",
    "speculate": "speculate {}",
    "device": "{}",
    "threads": "threads {}",
    "block_size": "blocks of {}",
    "kernel": "kernel {}",
    "processor": "{}",
    "commit": "commit {}",
    "torch": "torch {}",
}


@dataclass(frozen=True)
class Series:
    """One line of a picture. `failed` are the rows that were meant for it and have no figures."""

    name: str
    rows: tuple[Row, ...]
    failed: tuple[Row, ...] = ()


@dataclass(frozen=True)
class Point:
    """The median of all rows at x, with the slowest and the fastest repetition where they are known."""

    x: float
    y: float
    low: float
    high: float


def number(value: Any) -> float | None:
    """Return a finite number, or None for anything else; a figure of 0 or less is no measurement."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if value > 0 else None


def split(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Split rows into rows that were measured, and rows that were not."""
    rows = list(rows)
    measured = [row for row in rows if (row.get("status") or "ok") == "ok"]
    return measured, [row for row in rows if (row.get("status") or "ok") != "ok"]


def unmeasured(rows: Iterable[Row]) -> Counter[str]:
    """Count the rows of each status but "ok"."""
    return Counter(str(row["status"]) for row in split(rows)[1])


def short_model(name: Any) -> str:
    """Return the last part of a path or hub name."""
    return PurePath(str(name)).name or str(name)


def group(
    rows: Sequence[Row], failed: Sequence[Row] = (), along: str = "", leave: Collection[str] = ()
) -> list[Series]:
    """Make one series for every combination that differs in more than `along`, the quantity of the x axis.

    `leave` are fields without influence on what is drawn. A failed row goes to the series that it does not contradict:
    what was refused before an engine was built has no kernel or dtype to say.
    """
    fields = _telling(rows, along, leave)
    found: dict[tuple[Any, ...], tuple[list[Row], list[Row]]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(field) for field in fields), ([], []))[0].append(row)
    for row in failed:
        own = tuple(row.get(field) for field in fields)
        near = (key for key in found if all(b is None or a == b for a, b in zip(key, own, strict=True)))
        found.setdefault(next(near, own), ([], []))[1].append(row)
    order = sorted(found, key=lambda key: [_sortable(value) for value in key])
    return [Series(_name(fields, key), *map(tuple, found[key])) for key in order]


def points(rows: Iterable[Row], along: str, value: str) -> list[Point]:
    """Make points of rising x of the series' rows."""
    at: dict[float, list[tuple[float, float, float]]] = {}
    for row in rows:
        x, y = number(row.get(along)), number(row.get(value))
        if x is not None and y is not None:
            at.setdefault(x, []).append((y, *_spread(row, value, y)))
    found = []
    for x, values in sorted(at.items()):
        middle = median(y for y, _, _ in values)
        found.append(Point(x, middle, min(low for _, low, _ in values), max(high for _, _, high in values)))
    return found


def _spread(row: Row, value: str, y: float) -> tuple[float, float]:
    """Return slowest and fastest repetition; a rate without its own spread takes it from the times of its phase."""
    low, high = number(row.get(f"{value}_min")), number(row.get(f"{value}_max"))
    if low is not None and high is not None:
        return min(low, y), max(high, y)
    phase = value.partition("_")[0]
    middle, shortest, longest = (number(row.get(f"{phase}_ms{end}")) for end in ("", "_min", "_max"))
    if middle is None or shortest is None or longest is None:
        return y, y
    return min(y, y * middle / longest), max(y, y * middle / shortest)


def _telling(rows: Sequence[Row], along: str, leave: Collection[str]) -> list[str]:
    """Find the fields that tell series apart: each divides a group of rows which the fields before it do not."""
    fields: list[str] = []
    # A sweep labels its rows with a fingerprint of its settings: words only where no setting tells them apart.
    last = ["label"] if any(row.get("kind") == "sweep" for row in rows) else []
    for field in [*(field for field in _WORDS if field not in last), *last]:
        if field == along or field in leave or (field == "label" and not _labels_tell(rows)):
            continue
        values: dict[tuple[Any, ...], set[Any]] = {}
        for row in rows:
            key = tuple(row.get(known) for known in fields)
            values.setdefault(key, set()).add(row.get(field))
        if any(len(found - {None}) > 1 for found in values.values()):
            fields.append(field)
    return fields


def _labels_tell(rows: Sequence[Row]) -> bool:
    """Tell whether rows of one shape have different labels. Labels that only repeat the shape name no configuration."""
    labels: dict[tuple[Any, ...], set[Any]] = {}
    for row in rows:
        labels.setdefault(tuple(row.get(field) for field in SHAPE), set()).add(row.get("label"))
    return any(len(found - {None}) > 1 for found in labels.values())


def _name(fields: Sequence[str], key: Sequence[Any]) -> str:
    words = []
    for field, value in zip(fields, key, strict=True):
        if value is not None:
            words.append(_WORDS[field].format(short_model(value) if field == "model" else value))
    return " · ".join(words)


def _sortable(value: Any) -> tuple[int, float, str]:
    """Sort numbers by size, then words, then what is not known."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))
