"""Summaries of many measurements: percentiles, and the median with the smallest and the largest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Interpolate linearly between the two nearest values, as numpy and vLLM do; None for no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of at least one value."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise these values; ValueError for none."""
        median = percentile(values, 50)
        if median is None:
            raise ValueError("no values")
        return cls(median, min(values), max(values))

    def columns(self, name: str) -> dict[str, float]:
        """Return the columns `name`, `name_min` and `name_max` of a result row."""
        return {name: self.median, f"{name}_min": self.min, f"{name}_max": self.max}
