"""Words beside points, placed so that they cover neither each other nor a point."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from matplotlib.text import Text
from matplotlib.transforms import Bbox

from tokenmill.bench.plot.frame import GREY

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
_FAR = 8  # the first of those


def place_labels(figure: Any, axes: Any, labels: Sequence[tuple[float, float, str]]) -> None:
    """Write each (x, y, words) at the first place that is free; one that has none is not written.

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
    """A line in display coordinates as many small boxes."""
    make = Bbox.from_bounds
    boxes = []
    for (x0, y0), (x1, y1) in pairwise(corners):
        num = 1 + int(max(abs(x1 - x0), abs(y1 - y0)) // 4)
        for step in range(num):
            x, y = x0 + (x1 - x0) * step / num, y0 + (y1 - y0) * step / num
            boxes.append(make(x - 1.5, y - 1.5, 3, 3))
    return boxes
