"""The picture `sweep`: decode tokens/s over the batch, prefill tokens/s over the length of the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.bench.plot.frame import (
    Style,
    from_zero,
    legend,
    legend_inches,
    mark_unmeasured,
    new_figure,
    plain_axis,
    style,
)
from tokenmill.bench.plot.series import Row, Series, group, number, points, split

_WIDE = 5.6  # inches of a panel


@dataclass(frozen=True)
class _Panel:
    """One of the two panels. `along` is its x axis; `leave` has no influence on its figures."""

    name: str
    value: str
    along: str
    title: str
    words: str
    needs: str
    leave: tuple[str, ...] = ()


_PANELS = (
    _Panel(
        "decode", "decode_tok_s", "batch", "Decode: tokens/s, all sequences together", "sequences in a batch", "new"
    ),
    _Panel("prefill", "prefill_tok_s", "prompt", "Prefill: tokens/s", "tokens of the prompt", "prompt", ("new",)),
)


def draw(rows: Sequence[Row]) -> tuple[Any | None, dict[str, str]]:
    rows = [row for row in rows if row.get("kind") != "ladder"]
    chosen: list[tuple[_Panel, list[Row]]] = []
    missing: dict[str, str] = {}
    for panel in _PANELS:
        fitting = [row for row in rows if _belongs(row, panel)]
        reason = _refuse(fitting, panel)
        if reason is None:
            chosen.append((panel, fitting))
        else:
            missing[panel.name] = reason
    if not chosen:
        return None, {"": "; ".join(f"{name}: {reason}" for name, reason in missing.items())}
    used = [row for row in rows if any(row is one for _, fitting in chosen for one in fitting)]
    series = [_series(panel, fitting) for panel, fitting in chosen]
    below = max(legend_inches((one.name for one in found), _WIDE) for found in series)
    figure = new_figure("Tokens per second", used, _notes(series, chosen), (_WIDE * len(chosen), 3.9 + below))
    for axes, (panel, _), found in zip(figure.subplots(1, len(chosen), squeeze=False)[0], chosen, series, strict=True):
        _draw_panel(axes, panel, found)
    return figure, missing


def _belongs(row: Row, panel: _Panel) -> bool:
    """Tell whether a row belongs to a panel; a failed row does if it would have had the panel's phase."""
    if (row.get("status") or "ok") == "ok":
        return number(row.get(panel.value)) is not None and number(row.get(panel.along)) is not None
    return number(row.get(panel.needs)) is not None and number(row.get(panel.along)) is not None


def _refuse(rows: Sequence[Row], panel: _Panel) -> str | None:
    """Return the reason why this panel is no curve, or None."""
    if not split(rows)[0]:
        return f"no result has {panel.value}"
    places = {row[panel.along] for row in rows}
    if len(places) < 2:
        return f"every result has {panel.along} {places.pop()}, and a curve needs two or more"
    return None


def _series(panel: _Panel, rows: Sequence[Row]) -> list[Series]:
    measured, failed = split(rows)
    return group(measured, failed, panel.along, panel.leave)


def _notes(series: Sequence[Sequence[Series]], chosen: Sequence[tuple[_Panel, list[Row]]]) -> list[str]:
    notes = []
    drawn = [
        (len(one.rows), points(one.rows, panel.along, panel.value))
        for found, (panel, _) in zip(series, chosen, strict=True)
        for one in found
    ]
    if any(point.low < point.high for _, found in drawn for point in found):
        notes.append("Whiskers: slowest and fastest repetition.")
    if any(count > len(found) for count, found in drawn):
        notes.append("Several results of one point are drawn as their median.")
    return notes


def _draw_panel(axes: Any, panel: _Panel, series: Sequence[Series]) -> None:
    styles = {one.name: style(index) for index, one in enumerate(series)}
    handles = [(_line(axes, panel, one, styles[one.name]), one.name) for one in series]
    axes.set_title(panel.title)
    axes.set_xlabel(panel.words)
    every = [float(row[panel.along]) for one in series for row in (*one.rows, *one.failed)]
    plain_axis(axes.xaxis, every)
    from_zero(axes)
    axes.margins(x=0.06)
    mark_unmeasured(axes, series, styles, panel.along)
    legend(axes, handles, _WIDE)


def _line(axes: Any, panel: _Panel, one: Series, look: Style) -> Any:
    found = points(one.rows, panel.along, panel.value)
    return axes.errorbar(
        [point.x for point in found],
        [point.y for point in found],
        yerr=[[point.y - point.low for point in found], [point.high - point.y for point in found]],
        color=look.colour,
        marker=look.marker,
        linestyle=look.dash,
        capsize=3,
        elinewidth=1,
        label=one.name,
    )
