"""The picture `load`: what a server gives, and how long it takes, over the requests in flight.

Its rows are the documents of `tokenmill bench load`, or of vLLM's `bench serve`, one for each --concurrency.
"""

from collections.abc import Sequence
from typing import Any

from tokenmill.bench.plot.frame import from_zero, legend, legend_inches, new_figure, plain_axis, style
from tokenmill.bench.plot.series import Row, group, number, points

_ALONG, _WIDE = "max_concurrency", 4.2  # inches of a panel
_PANELS = (
    ("Output: tokens/s of all together", {"output_throughput": "-"}),
    ("To the first token: milliseconds", {"median_ttft_ms": "-", "p99_ttft_ms": ":"}),
    ("For each token after it: milliseconds", {"median_tpot_ms": "-", "p99_tpot_ms": ":"}),
)


def draw(rows: Sequence[Row]) -> tuple[Any | None, dict[str, str]]:
    """See Drawing."""
    found = [row | {"model": row.get("model_id")} for row in map(dict, rows) if _is_load(row)]
    if not found:
        return None, {"": "no result has output_throughput and max_concurrency"}
    places = {row[_ALONG] for row in found}
    if len(places) < 2:
        return None, {"": f"every result has max_concurrency {places.pop()}, and a curve needs two or more"}
    series = group(found, along=_ALONG)
    notes = ["Dotted: the 99th percentile, above the median. Each request streams its answer."]
    if failed := sum(row.get("failed") or 0 for row in found):
        notes.append(f"{failed} requests failed and are not in the figures.")
    below = legend_inches((one.name for one in series), _WIDE)
    figure = new_figure("Load on a server", found, notes, (_WIDE * len(_PANELS), 3.7 + below))
    for place, (axes, (title, values)) in enumerate(zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True)):
        handles = []
        for index, one in enumerate(series):
            look = style(index)
            lines = [
                axes.plot(*_curve(one.rows, value), color=look.colour, marker=look.marker, linestyle=dash)[0]
                for value, dash in values.items()
            ]
            handles.append((lines[0], one.name))
        axes.set_title(title)
        axes.set_xlabel("requests in flight")
        plain_axis(axes.xaxis, [float(each) for each in places])
        from_zero(axes)
        if place == 0:
            legend(axes, handles, _WIDE)
    return figure, {}


def _is_load(row: Row) -> bool:
    return number(row.get("output_throughput")) is not None and number(row.get(_ALONG)) is not None


def _curve(rows: Sequence[Row], value: str) -> tuple[list[float], list[float]]:
    found = points(rows, _ALONG, value)
    return [point.x for point in found], [point.y for point in found]
