"""The frame of every picture: colours, title, caption, legend, and the cross that marks a failure.

The colours are by Okabe and Ito (jfly.uni-koeln.de/color): people with any colour vision can tell them apart.
A marker goes with each, so that the pictures also survive grey paper. matplotlib is used without pyplot:
no state outlives a figure.
"""

import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tokenmill.bench.plot.series import Row, Series, number, short_model, unmeasured
from tokenmill.measure.files import write_atomically

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK = "#CC79A7", "#56B4E9", "#000000"
_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK)  # without their yellow, which white paper swallows
_MARKERS = ("o", "s", "^", "D", "v", "P", "*")
_DASHES = ("-", "--", ":", "-.")
GREY = "#595959"

# Inches. Text does not grow with the figure, so its space is counted in inches too.
_PER_LINE, _TITLE, _LETTERS_PER_INCH = 0.17, 0.32, 15.0

_LOOK: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 6.5,
    "text.parse_math": False,  # a name with two dollar signs is a name
    "svg.hashsalt": "tokenmill",  # the same rows give the same bytes
}


@dataclass(frozen=True)
class Style:
    """The style in which one series is drawn."""

    colour: str
    marker: str
    dash: str
    is_hollow: bool = False


def style(index: int) -> Style:
    """Colour and marker change together; after seven the line is dashed, and a marker without a line is hollow."""
    round_number, place = divmod(index, len(_COLOURS))
    return Style(
        _COLOURS[place],
        _MARKERS[(place + round_number) % len(_MARKERS)],
        _DASHES[round_number % len(_DASHES)],
        round_number % 2 == 1,
    )


def styled() -> AbstractContextManager[None]:
    """Have pictures look the same whatever the user's matplotlibrc says."""
    return rc_context(_LOOK)


def new_figure(title: str, rows: Sequence[Row], notes: Iterable[str], inches: tuple[float, float]) -> Any:
    """Make a figure with title, what all rows share, and a caption; `inches` are left between them for the axes."""
    wide = int((inches[0] - 0.3) * _LETTERS_PER_INCH)
    about = textwrap.wrap(_about(rows), int(0.93 * wide))
    caption = [line for note in [*notes, *_remarks(rows)] for line in textwrap.wrap(note, wide)]
    above = _TITLE + _PER_LINE * len(about) + 0.12
    below = _PER_LINE * len(caption) + (0.1 if caption else 0.0)
    height = inches[1] + above + below
    figure: Any = Figure(figsize=(inches[0], height), layout="constrained")
    FigureCanvasAgg(figure)  # measures text before it is drawn
    figure.get_layout_engine().set(rect=(0, below / height, 1, inches[1] / height))
    left = 0.12 / inches[0]
    figure.suptitle(title, x=left, y=1 - 0.08 / height, ha="left", va="top", fontsize=13, fontweight="bold")
    figure.text(left, 1 - _TITLE / height, "\n".join(about), ha="left", va="top", fontsize=9, color=GREY)
    figure.text(left, 0.06 / height, "\n".join(caption), ha="left", va="bottom", fontsize=8, color=GREY)
    return figure


def _about(rows: Sequence[Row]) -> str:
    """Name model, machine and version: each as far as the rows agree, else how many there are."""
    parts = []
    for field in ("model", "scheme", "dtype", "processor", "device", "threads", "cores", "commit"):
        words = f"{field} {{}}" if field in ("threads", "cores", "commit") else "{}"
        if field == "cores" and any(row.get("threads") for row in rows):
            continue  # by default there is a thread for each, and the row says so with an empty cell
        values = list(dict.fromkeys(row[field] for row in rows if row.get(field) not in (None, "")))
        if field == "model":
            values = list(dict.fromkeys(map(short_model, values)))
        if values:
            listed = ", ".join(map(str, values)) if len(values) < 4 else f"{len(values)} {field}s"
            parts.append(words.format(listed) if len(values) < 4 else listed)
    # A part stays in one piece where the line is broken.
    return " · ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Return the remarks on the rows that a reader needs before believing the picture."""
    remarks, failed = [], unmeasured(rows)
    if failed:
        counts = ", ".join(f"{count} {status}" for status, count in failed.most_common())
        reasons = list(dict.fromkeys(str(row["reason"]) for row in rows if _has_reason(row)))
        why = f" ({'; '.join(reasons[:2])}{'; …' if len(reasons) > 2 else ''})" if reasons else ""
        remarks.append(f"{failed.total()} of {len(rows)} results have no figures, marked with a cross: {counts}{why}.")
    noisy = sum(row.get("noisy") is True for row in rows)
    if noisy:
        remarks.append(f"{noisy} of {len(rows)} results were taken while the machine was busy with something else.")
    return remarks


def _has_reason(row: Row) -> bool:
    return bool(row.get("reason")) and (row.get("status") or "ok") != "ok"


def _cross(axes: Any, x: Sequence[float], y: Sequence[float], colour: str, **look: Any) -> Any:
    """Draw the hollow cross that stands for rows without figures."""
    look = {"markerfacecolor": "white", "markeredgecolor": colour, "linestyle": "none", "gid": "unmeasured", **look}
    (cross,) = axes.plot(x, y, marker="X", markersize=9, **look)
    return cross


def mark_unmeasured(axes: Any, series: Sequence[Series], styles: Mapping[str, Style], along: str) -> None:
    """Draw a hollow cross at the axis for each failed row, in its series' colour; the status is written above them."""
    statuses: dict[float, Counter[str]] = {}
    for one in series:
        for row in one.failed:
            x = number(row.get(along))
            if x is None:
                continue
            counts = statuses.setdefault(x, Counter())
            # Several at one place stand above each other.
            place = {"transform": axes.get_xaxis_transform(), "zorder": 5, "clip_on": False}
            _cross(axes, [x], [0.03 + 0.055 * counts.total()], styles[one.name].colour, **place)
            counts[str(row["status"])] += 1
    for x, counts in statuses.items():
        axes.annotate(
            ", ".join(status if len(counts) == 1 else f"{count} {status}" for status, count in counts.items()),
            (x, 0.03 + 0.055 * (counts.total() - 1)),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 9),
            textcoords="offset points",
            rotation=90,
            ha="center",
            va="bottom",
            fontsize=8,
            color=GREY,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            zorder=1.5,
        )


def mark_failed_bar(axes: Any, place: float, status: str, colour: str) -> None:
    """Draw the cross where a horizontal bar would begin."""
    _cross(axes, [0.012], [place], colour, transform=axes.get_yaxis_transform(), zorder=5, clip_on=False)
    axes.annotate(
        status,
        (0.012, place),
        xycoords=axes.get_yaxis_transform(),
        xytext=(9, 0),
        textcoords="offset points",
        va="center",
        fontsize=9,
        color=GREY,
    )


def unmeasured_entry(axes: Any, one: Series, colour: str) -> Any:
    """Draw the cross without a place, for the legend of a picture where what failed has no place."""
    statuses = " and ".join(unmeasured(one.failed))
    return _cross(axes, [], [], colour, label=f"{one.name}: {statuses}" if one.name else statuses)


def legend(axes: Any, entries: Iterable[tuple[Any, str]], inches: float) -> None:
    """Put a legend under the axes, where it covers nothing. A single series without a name needs none."""
    listed = [(handle, name) for handle, name in entries if name]
    if listed:
        # matplotlib takes a name that begins with "_" for one of its own and leaves it out.
        names = [f" {name}" if name.startswith("_") else name for _, name in listed]
        place = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.16), "borderaxespad": 0.0}
        axes.legend([handle for handle, _ in listed], names, ncols=_columns(names, inches), **place)


def legend_inches(names: Iterable[str], inches: float) -> float:
    """Compute the height that such a legend takes."""
    listed = [name for name in names if name]
    return 0.2 * -(-len(listed) // _columns(listed, inches))


def _columns(names: Sequence[str], inches: float) -> int:
    """Count the entries that fit beside each other, names and handles."""
    longest = max(map(len, names), default=0)
    return max(1, min(4, int(inches / (0.085 * longest + 0.7))))


def from_zero(axes: Any) -> None:
    """Begin the y axis at 0, with space above the largest value, so that no marker is cut."""
    axes.set_ylim(0, 1.08 * axes.dataLim.y1)


def plain(value: float, _place: Any = None) -> str:
    """Write a number as 512, 4096 or 0.25: never as a power of ten."""
    return f"{value:,.0f}" if value >= 10000 else f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def plain_axis(axis: Any, values: Iterable[float]) -> None:
    """Put ticks at the values that were measured, thinned when there are many; logarithmic when they grow so."""
    found = sorted(set(values))
    if found[0] > 0 and found[-1] / found[0] > 6:
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_ticks(found[:: -(-len(found) // 9)], minor=False)
    axis.set_ticks([], minor=True)
    axis.set_major_formatter(FuncFormatter(plain))


def save(figure: Any, path: Path, setting: str) -> None:
    """Write PNG or SVG by suffix, without a date: the same rows give the same file."""
    buffer = io.BytesIO()
    kind = path.suffix.removeprefix(".")
    figure.savefig(buffer, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else {"Software": None})
    write_atomically(path, buffer.getvalue(), setting)
