"""The picture `roofline`: GFLOP/s over operations per byte, below the machine's roofline (Williams, Waterman,
Patterson, CACM 2009).

Log-log: x is operations per byte, y GFLOP/s. Left of the roof's corner memory is the limit, right of it arithmetic.
Decode reads every weight for each token and sits far left; a batch or a prompt shares the reading and moves right. The
bytes are computed from the model's shape; no counter saw them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import atan2, degrees
from statistics import median
from typing import Any, NamedTuple

from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, NullFormatter
from matplotlib.transforms import Bbox

from tokenmill.bench.plot.frame import BLACK, GREY, legend, legend_inches, new_figure, plain, style, unmeasured_entry
from tokenmill.bench.plot.series import SHAPE, Row, Series, group, number, split

_PHASES = {"decode": "o", "prefill": "s"}
_WIDE = 7.6  # inches
_MAX_LABELS = 14


@dataclass(frozen=True)
class Roof:
    """The measured limits of a machine."""

    name: str
    read_gb_s: float
    gflop_s: float

    def at(self, intensity: float) -> float:
        """Return the GFLOP/s that are possible with this many operations per byte."""
        return min(self.read_gb_s * intensity, self.gflop_s)

    @property
    def corner(self) -> float:
        """Operations per byte from which on arithmetic is the limit."""
        return self.gflop_s / self.read_gb_s


class _Spot(NamedTuple):
    phase: str
    intensity: float
    gflop_s: float
    share: float
    words: str


def draw(rows: Sequence[Row]) -> tuple[Any | None, dict[str, str]]:
    measured, failed = split(rows)
    roofed = [row for row in measured if _roof_of(row) is not None]
    if not roofed:
        return None, {"": "no result has the machine's own speed (machine_read_gb_s and machine_gflop_s)"}
    placed = [row for row in roofed if any(_spot(row, phase) for phase in _PHASES)]
    if not placed:
        return None, {"": "no result has operations and bytes per second (as decode_gflop_s and decode_gb_s)"}
    lost = [row for row in failed if row.get("kind") != "ladder"]
    # The shape of a point is written beside it; the colour says what was run.
    series = group(placed, lost, leave=SHAPE)
    roofs = _roofs(placed)
    notes = [
        "Per cent: share of the roof above the point. "
        "Bytes and operations are counted from the model's shape, the roof is measured."
    ]
    if len(placed) < len(measured):
        notes.append(f"{len(measured) - len(placed)} results without operations or bytes per second are not shown.")
    names = [*_PHASES, *(one.name for one in series), *("lost" for one in series if one.failed)]
    names += [_words_of(roof) for roof in roofs if len(roofs) > 1]
    figure = new_figure("Roofline", [*placed, *lost], notes, (_WIDE, 4.6 + legend_inches(names, _WIDE)))
    _draw_axes(figure, figure.subplots(), series, roofs)
    return figure, {}


def _roof_of(row: Row) -> tuple[float, float] | None:
    read, flops = number(row.get("machine_read_gb_s")), number(row.get("machine_gflop_s"))
    return None if read is None or flops is None else (read, flops)


def _spot(row: Row, phase: str) -> _Spot | None:
    flops, read, roof = number(row.get(f"{phase}_gflop_s")), number(row.get(f"{phase}_gb_s")), _roof_of(row)
    if flops is None or read is None or roof is None:
        return None
    share = flops / Roof("", *roof).at(flops / read)
    batch = row.get("batch") or 1
    if phase == "decode":
        words = f"batch {batch}"
    else:
        words = f"prompt {row.get('prompt', '')}" + (f" x {batch}" if batch != 1 else "")
    return _Spot(phase, flops / read, flops, share, words)


def _roofs(rows: Sequence[Row]) -> list[Roof]:
    """Find one roof for each machine, thread count and number type; of several measurements the median."""
    keys = ("processor", "device", "threads", "dtype")
    found: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for row in rows:
        roof = _roof_of(row)
        assert roof is not None, "rows without were left out above"
        found.setdefault(tuple(row.get(key) for key in keys), []).append(roof)
    telling = [place for place in range(len(keys)) if len({key[place] for key in found}) > 1]
    roofs = []
    for key, values in found.items():
        words = [f"threads {key[place]}" if keys[place] == "threads" else str(key[place]) for place in telling]
        middle = median(read for read, _ in values), median(flops for _, flops in values)
        roofs.append(Roof(" · ".join(words), *middle))
    return roofs


def _draw_axes(figure: Any, axes: Any, series: Sequence[Series], roofs: Sequence[Roof]) -> None:
    entries, spots = [], []
    for index, one in enumerate(series):
        colours = dict.fromkeys(_PHASES, style(index).colour)
        if len(series) == 1:
            colours = {phase: style(place).colour for place, phase in enumerate(_PHASES)}
        found = [spot for row in one.rows for phase in _PHASES if (spot := _spot(row, phase)) is not None]
        handle = None
        for spot in found:
            handle = _draw_spot(axes, spot, colours[spot.phase], style(index).is_hollow)
        if handle is not None:
            entries.append((handle, one.name))
        if one.failed:
            cross = unmeasured_entry(axes, one, style(index).colour)
            entries.append((cross, cross.get_label()))
        spots += found
    entries = _phase_entries(axes, spots, len(series)) + entries
    lines = _scale(axes, spots, roofs)
    if len(roofs) > 1:
        entries += [(line, _words_of(roof)) for line, roof in zip(lines, roofs, strict=True)]
    legend(axes, entries, _WIDE)
    figure.draw_without_rendering()  # what follows goes by where things lie on the page
    if len(roofs) == 1:
        _write_on(axes, roofs[0])
    place_labels(figure, axes, _labels(spots))


def _draw_spot(axes: Any, spot: _Spot, colour: str, is_hollow: bool) -> Any:
    """Draw a circle or square by the phase: the eighth series differs from the first by being hollow alone."""
    (handle,) = axes.plot(
        [spot.intensity],
        [spot.gflop_s],
        marker=_PHASES[spot.phase],
        color=colour,
        markerfacecolor="white" if is_hollow else colour,
        markeredgecolor=colour if is_hollow else "white",
        markeredgewidth=1.6 if is_hollow else 1.0,
        linestyle="none",
        markersize=8,
        zorder=4,
        gid=spot.phase,
    )
    return handle


def _phase_entries(axes: Any, spots: Sequence[_Spot], num_series: int) -> list[tuple[Any, str]]:
    """Make the entries of the legend for circle and square."""
    entries = []
    for place, phase in enumerate(_PHASES):
        if any(spot.phase == phase for spot in spots):
            colour = style(place).colour if num_series == 1 else "white"
            edge = "white" if num_series == 1 else BLACK
            look = {"marker": _PHASES[phase], "color": colour, "markeredgecolor": edge, "markersize": 8}
            entries.append((axes.plot([], [], linestyle="none", **look)[0], phase))
    return entries


def _scale(axes: Any, spots: Sequence[_Spot], roofs: Sequence[Roof]) -> list[Any]:
    """Scale both axes, with space for labels, and return the roofs, drawn from end to end."""
    lines = []
    values = [spot.intensity for spot in spots] + [roof.corner for roof in roofs]
    left, right = min(values) / 2.5, max(values) * 3
    for index, roof in enumerate(roofs):
        corners = [left, roof.corner, right], [roof.at(left), roof.gflop_s, roof.gflop_s]
        dash = style(7 * index).dash
        lines += axes.plot(*corners, color="black", linestyle=dash, linewidth=1.6, zorder=2, gid="roof")
    axes.set(xscale="log", yscale="log", xlim=(left, right), xlabel="operations per byte", ylabel="GFLOP/s")
    bottom = min(*(spot.gflop_s for spot in spots), *(roof.at(left) for roof in roofs)) / 1.8
    axes.set_ylim(bottom, max(roof.gflop_s for roof in roofs) * 1.8)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(plain))
        axis.set_minor_formatter(NullFormatter())
    return lines


def _labels(spots: Sequence[_Spot]) -> list[tuple[float, float, str]]:
    """Choose words for the best point of each shape; of many, the extremes of each phase and some between."""
    chosen: list[_Spot] = []
    for phase in _PHASES:
        best: dict[str, _Spot] = {}
        for spot in sorted(spots, key=lambda spot: spot.gflop_s):
            if spot.phase == phase:
                best[spot.words] = spot
        own = sorted(best.values(), key=lambda spot: (spot.intensity, spot.gflop_s))
        limit = _MAX_LABELS // len(_PHASES)
        if len(own) > limit:
            own = [own[round(place * (len(own) - 1) / (limit - 1))] for place in range(limit)]
        chosen += own
    return [(spot.intensity, spot.gflop_s, f"{spot.words}: {100 * spot.share:.0f} %") for spot in chosen]


def _words_of(roof: Roof) -> str:
    return f"{roof.name}: {plain(roof.read_gb_s)} GB/s, {plain(roof.gflop_s)} GFLOP/s"


def _write_on(axes: Any, roof: Roof) -> None:
    """Write words on both parts of the only roof."""
    left, right = axes.get_xlim()
    look = {"textcoords": "offset points", "va": "bottom", "fontsize": 8.5}
    words = f"arithmetic {plain(roof.gflop_s)} GFLOP/s"
    axes.annotate(words, (right, roof.gflop_s), xytext=(-4, 4), ha="right", **look)
    start = left * (roof.corner / left) ** 0.12
    (x0, y0), (x1, y1) = axes.transData.transform([(start, roof.at(start)), (roof.corner, roof.gflop_s)])
    turned = {"rotation": degrees(atan2(y1 - y0, x1 - x0)), "rotation_mode": "anchor", "ha": "left"}
    words = f"memory {plain(roof.read_gb_s)} GB/s"
    axes.annotate(words, (start, roof.at(start)), xytext=(-4, 4), **turned, **look)


# Offsets in points and how the text hangs on them, the best first.
_PLACES = (
    (7, 0, "left", "center"),
    (-7, 0, "right", "center"),
    (0, -8, "center", "top"),
    (0, 8, "center", "bottom"),
    (8, -9, "left", "top"),
    (-8, -9, "right", "top"),
    (8, 9, "left", "bottom"),
    (-8, 9, "right", "bottom"),
    # Further down, with a line to the point.
    (0, -26, "center", "top"),
    (0, -44, "center", "top"),
    (0, -62, "center", "top"),
)
_FAR = 8  # the index of the first place further down


def place_labels(figure: Any, axes: Any, labels: Sequence[tuple[float, float, str]]) -> None:
    """Write each (x, y, words) at the first place that is free, if there is one.

    The layout must stand before anything can be said to overlap: figure.draw_without_rendering() comes first.
    """
    renderer = figure.canvas.get_renderer()
    taken = [line.get_window_extent(renderer).padded(2) for line in axes.lines if line.get_linestyle() == "None"]
    for line in axes.lines:
        if line.get_linestyle() != "None":
            taken += _boxes_along(axes.transData.transform(line.get_xydata()))
    # A slanted text fills a part of its box only; its line, which is taken, keeps others away from it.
    taken += [text.get_window_extent(renderer) for text in axes.texts if not text.get_rotation()]
    extent = Text.get_window_extent  # of the words alone, without the line to the point
    inside = axes.get_window_extent(renderer)
    for x, y, words in labels:
        for place, (dx, dy, ha, va) in enumerate(_PLACES):
            line = {"arrowstyle": "-", "linewidth": 0.6, "color": GREY, "shrinkA": 0, "shrinkB": 4}
            how = {"ha": ha, "va": va, "fontsize": 8, "zorder": 6, "arrowprops": line if place >= _FAR else None}
            text = axes.annotate(words, (x, y), xytext=(dx, dy), textcoords="offset points", **how)
            text.update_positions(renderer)
            boxes = [extent(text, renderer)]
            free = all(inside.contains(*corner) for corner in boxes[0].corners())
            if place >= _FAR:
                top, bottom = axes.transData.transform((x, y)) - (0, 12), boxes[0].corners()[1] + (0, 2)
                boxes += _boxes_along([top, (top[0], bottom[1])])
            if free and not any(box.overlaps(other) for other in taken for box in boxes):
                taken += [boxes[0].padded(4), *boxes[1:]]
                break
            text.remove()


def _boxes_along(corners: Any) -> list[Any]:
    """Cover a line in display coordinates with many small boxes."""
    make = Bbox.from_bounds
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        num = 1 + int(max(abs(x1 - x0), abs(y1 - y0)) // 4)
        for step in range(num):
            x, y = x0 + (x1 - x0) * step / num, y0 + (y1 - y0) * step / num
            boxes.append(make(x - 1.5, y - 1.5, 3, 3))
    return boxes
