"""The mean time that admission slots are held, from which a client that finds none is told when to come again."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

__all__ = ["Turnover"]

NUM_REMEMBERED = 64  # requests
LONGEST_S = 600


class Turnover:
    """Remembers how long the last requests held their slots. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._held_s: deque[float] = deque(maxlen=NUM_REMEMBERED)
        self._begun_s: dict[object, float] = {}  # of requests that hold slots now

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A request holds its slots inside this context."""
        key = object()
        self._begun_s[key] = begun_s = self._clock()
        try:
            yield
        finally:
            del self._begun_s[key]
            self._held_s.append(self._clock() - begun_s)

    def wait_s(self, count: int, num_open: int) -> int:
        """Whole seconds until so many more slots will be free, at least 1 and at most LONGEST_S.

        By Little's law num_open slots, each of them held for T seconds, become free at a rate of num_open / T. T is
        the mean of the last requests, or of those that hold slots now where that is longer: a server that is stuck
        tells its clients to come less often.
        """
        now_s = self._clock()
        lengths = [self._held_s, [now_s - begun_s for begun_s in self._begun_s.values()]]
        mean_s = max((fmean(each) for each in lengths if each), default=0.0)
        return min(max(math.ceil(mean_s * count / max(num_open, 1)), 1), LONGEST_S)
