"""Few numbers for many: medians, extremes, percentiles. All of them belong to a value that was really measured."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spread", "percentile"]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` (0 to 1) of all are no larger than; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value or more; an even number of them has two middles, and the mean of those is taken."""
        ordered = sorted(values)
        middle = len(ordered) // 2
        median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
        return cls(median, ordered[0], ordered[-1])
