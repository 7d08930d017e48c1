"""The picture `ladder`: one bar per rung, the first at the bottom, with what each gained over the rung below."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenmill.bench.plot.frame import mark_failed_bar, new_figure, plain, style
from tokenmill.bench.plot.series import Point, Row, Series, group, number, points, split

TIMES = "\N{MULTIPLICATION SIGN}"


def draw(rows: Sequence[Row]) -> tuple[Any | None, dict[str, str]]:
    rungs = [row for row in rows if row.get("kind") == "ladder" and row.get("label")]
    if not rungs:
        return None, {"": 'no result is of a ladder (kind "ladder" with a label)'}
    measured, failed = split(rungs)
    measured = [row for row in measured if number(row.get("decode_tok_s")) is not None]
    if not measured:
        return None, {"": "no rung has decode_tok_s"}
    # Settings are what the rungs change; only another model, machine or version makes another ladder.
    settings = ("label", "program", "scheme", "dtype", "cache_format", "speculate", "threads", "block_size", "kernel")
    ladders = [one for one in group(measured, failed, leave=settings) if one.rows]
    order = {id(row): place for place, row in enumerate(rungs)}
    heights = [0.9 + 0.42 * len(_labels(one, order)) for one in ladders]
    notes = ["Factor: over the next rung below that was measured."]
    found = [point for one in ladders for label in _labels(one, order) if (point := _point(one, label)) is not None]
    if any(point.low < point.high for point in found):
        notes.append("Whiskers: slowest and fastest repetition.")
    figure = new_figure("Ladder: decode tokens per second", [*measured, *failed], notes, (7.6, sum(heights) + 0.2))
    panels = figure.subplots(len(ladders), 1, squeeze=False, height_ratios=heights)
    for axes, one in zip(panels[:, 0], ladders, strict=True):
        _draw_panel(axes, one, _labels(one, order))
    return figure, {}


def _labels(one: Series, order: Mapping[int, int]) -> list[str]:
    """Return the labels in the order of the files, which is the order of the rungs."""
    rows = sorted((*one.rows, *one.failed), key=lambda row: order[id(row)])
    return list(dict.fromkeys(str(row["label"]) for row in rows))


def _point(one: Series, label: str) -> Point | None:
    found = points(({**row, "at": 1} for row in one.rows if str(row["label"]) == label), "at", "decode_tok_s")
    return found[0] if found else None


def _draw_panel(axes: Any, one: Series, labels: Sequence[str]) -> None:
    look, below = style(0), None
    known = {label: point for label in labels if (point := _point(one, label)) is not None}
    widest = max(point.high for point in known.values())
    for place, label in enumerate(labels):
        point = known.get(label)
        if point is None:
            status = next(str(row["status"]) for row in one.failed if str(row["label"]) == label)
            mark_failed_bar(axes, place, status, look.colour)
            continue
        spread = [[point.y - point.low], [point.high - point.y]]
        axes.barh(place, point.y, height=0.62, color=look.colour, xerr=spread, error_kw={"elinewidth": 1, "capsize": 3})
        words = plain(point.y) if below is None else f"{plain(point.y)}   {TIMES}{point.y / below:.2f}"
        axes.annotate(words, (point.high, place), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9)
        below = point.y
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.6, len(labels) - 0.4)
    axes.set_xlim(0, widest * 1.22)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("tokens/s")
    if one.name:
        axes.set_title(one.name)
