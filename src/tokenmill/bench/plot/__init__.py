"""Pictures of result rows, as PNG and SVG: sweep, roofline and ladder.

A picture is one file and one line in PICTURES. Each takes rows as plain dicts, draws what they hold, and says what it
left out and why; a picture for which there is no data is not drawn. matplotlib is optional and imported on first use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenmill.bench.plot.frame import save, styled
from tokenmill.bench.plot.series import Row
from tokenmill.errors import TokenmillError
from tokenmill.measure.files import make_directory
from tokenmill.registry import PICTURES, lookup

__all__ = ["Drawing", "Drawn", "draw", "figures"]


class Drawing(Protocol):
    """Draws one picture: a matplotlib Figure or None, and what is missing in it, as part → reason."""

    def __call__(self, rows: Sequence[Row]) -> tuple[Any | None, dict[str, str]]: ...


@dataclass(frozen=True)
class Drawn:
    """The files that were written, and what was left out, as picture or part of one → reason."""

    written: tuple[Path, ...]
    left_out: dict[str, str]


def draw(rows: Sequence[Row], directory: Path, setting: str = "directory") -> Drawn:
    """Write every picture that the rows have data for. `setting` is what errors call the directory."""
    if not rows:
        raise TokenmillError("the files have no results: write some with `tokenmill bench … --output FILE`")
    written: list[Path] = []
    with styled():
        found, left_out = figures(rows)
        make_directory(directory, setting)
        for name, figure in found.items():
            for suffix in (".png", ".svg"):
                save(figure, directory / f"{name}{suffix}", setting)
                written.append(directory / f"{name}{suffix}")
    return Drawn(tuple(written), left_out)


def figures(rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, str]]:
    """Draw the pictures as matplotlib figures by name; say also what was left out."""
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    with styled():
        for name in PICTURES:
            drawing: Drawing = lookup(PICTURES, name, "picture")
            figure, missing = drawing(rows)
            if figure is not None:
                found[name] = figure
            left_out |= {f"{name}, {part}" if part else name: reason for part, reason in missing.items()}
    return found, left_out
