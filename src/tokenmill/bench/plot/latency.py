"""The picture `latency`: how the gaps between tokens are distributed, with p50, p90 and p99 marked.

A curve is drawn from the gaps themselves (`itl_ms`). A row that has only its three percentiles, as one out of a CSV
file, is drawn as these three points, joined by a dotted line which is no measurement.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from tokenmill.bench.plot.frame import GREY, Style, legend, new_figure, plain, style, unmeasured_entry
from tokenmill.bench.plot.series import Row, Series, group, number, split
from tokenmill.measure.statistics import percentile

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_MARKERS = {"p50": "o", "p90": "s", "p99": "^"}
_WIDE = 7.6  # inches
_MAX_CURVES = 7  # curves; one for each colour


def draw(rows: Sequence[Row]) -> tuple[Any | None, dict[str, str]]:
    """See Drawing."""
    measured, failed = split(rows)
    timed = [row for row in measured if _gaps([row]) or _percentiles(row)]
    if not timed:
        return None, {"": "no result has gaps between tokens (itl_ms, or itl_p50_ms, itl_p90_ms and itl_p99_ms)"}
    hopeless = [row for row in failed if row.get("new") and row.get("kind") != "ladder"]
    series = group(timed, hopeless)
    chosen = _choose([one for one in series if one.rows])
    lost = [one for one in series if one.failed]
    notes = ["Marked on each curve: circle p50, square p90, triangle p99. Further left is faster, steeper is steadier."]
    if any(not _gaps(one.rows) for one in chosen):
        notes.append("Dotted: only the three percentiles are known, not the curve between them.")
    shown = [row for one in chosen for row in one.rows] + hopeless
    if len(shown) < len(timed) + len(hopeless):
        num_series = sum(bool(one.rows) for one in series)
        notes.append(f"{len(chosen)} of {num_series} distributions are drawn, spread evenly from fastest to slowest.")
    figure = new_figure("Time between tokens", shown, notes, (_WIDE, 3.9 + 0.2 * (len(chosen) + len(lost))))
    _draw_axes(figure.subplots(), chosen, lost)
    return figure, {}


def _gaps(rows: Sequence[Row]) -> list[float]:
    found = []
    for row in rows:
        gaps = row.get("itl_ms")
        if isinstance(gaps, list | tuple):
            found += [gap for value in gaps if (gap := number(value)) is not None]
    return found


def _percentiles(row: Row) -> dict[str, float]:
    found = {name: number(row.get(f"itl_{name}_ms")) for name in _SHARES}
    known = {name: value for name, value in found.items() if value is not None}
    return known if len(known) == len(_SHARES) else {}


def _marks(rows: Sequence[Row]) -> dict[str, float]:
    """The three percentiles of a series: of its gaps, else as the first row of it says."""
    gaps = _gaps(rows)
    of_gaps = {name: percentile(gaps, 100 * share) for name, share in _SHARES.items()}
    known = {name: value for name, value in of_gaps.items() if value is not None}
    return known or next(found for row in rows if (found := _percentiles(row)))


def _choose(series: Sequence[Series]) -> list[Series]:
    """All, or as many as stay readable, evenly from the fastest to the slowest."""
    if len(series) <= _MAX_CURVES:
        return list(series)
    ordered = sorted(series, key=lambda one: _marks(one.rows)["p50"])
    return [ordered[round(place * (len(ordered) - 1) / (_MAX_CURVES - 1))] for place in range(_MAX_CURVES)]


def _draw_axes(axes: Any, chosen: Sequence[Series], lost: Sequence[Series]) -> None:
    for share in _SHARES.values():
        axes.axhline(share, color=GREY, linewidth=0.6, linestyle=":", zorder=1)
    looks = {one.name: style(index) for index, one in enumerate(chosen)}
    entries = []
    for one in chosen:
        marks = _marks(one.rows)
        words = ", ".join(f"{name} {plain(value)}" for name, value in marks.items()) + " ms"
        entries.append((_curve(axes, one, marks, looks[one.name]), f"{one.name}:  {words}" if one.name else words))
    for one in lost:
        cross = unmeasured_entry(axes, one, looks[one.name].colour if one.name in looks else GREY)
        entries.append((cross, cross.get_label()))
    every = [value for one in chosen for value in (*_gaps(one.rows), *_marks(one.rows).values())]
    if max(every) / min(every) > 6:
        _log_axis(axes)
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 0.25, *_SHARES.values()], ["0", "25 %", "p50", "p90", "p99"])
    axes.set_ylabel("share of tokens that came within")
    axes.set_xlabel("milliseconds since the token before")
    legend(axes, entries, _WIDE)


def _curve(axes: Any, one: Series, marks: dict[str, float], look: Style) -> Any:
    gaps = sorted(_gaps(one.rows))
    if gaps:
        shares = [index / max(len(gaps) - 1, 1) for index in range(len(gaps))]
        (line,) = axes.plot([*gaps, gaps[-1]], [*shares, 1.0], color=look.colour, linestyle=look.dash)
    else:
        (line,) = axes.plot(marks.values(), _SHARES.values(), color=look.colour, linestyle=":", linewidth=1)
    for name, value in marks.items():
        axes.plot([value], [_SHARES[name]], marker=_MARKERS[name], color=look.colour, markeredgecolor="white", zorder=4)
    return line


def _log_axis(axes: Any) -> None:
    """1, 2, 5, 10, …: enough numbers to read a value, few enough not to collide."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(plain))
    axes.xaxis.set_minor_locator(NullLocator())
