"""Limits under load: admission slots for sequences that run or wait, and a bound on the prompt tokens of a step.

A client that finds no slot is told when to come again. With the bound no long prompt stalls the sequences that decode.
The time of a step in which prompts are computed grows with its prompt tokens. The time of one prompt token is
measured at each such step, since it grows with the length of the text, and the next step takes as many prompt tokens as
fit the bound.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

from tokenmill.engine.loop import Observer
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan
from tokenmill.serve.http.errors import QueueFull
from tokenmill.serve.loop.metrics import Metrics

NUM_REMEMBERED = 64  # requests
LONGEST_S = 59  # openai's client in JavaScript ignores a wait of 60 s or more, that in Python one above 120 s
FIRST_TOKENS, LEAST_TOKENS = 64, 16  # before anything is measured; and always, since a prompt must get on
MARGIN = 0.75  # of the bound is planned for, because steps vary


class Admission:
    """The admission slots, used in the event loop alone. max_open: all slots; num_open: slots that are held. clock:
    seconds.

    max_open_of_one: slots of one key, so that with several keys none takes all.
    """

    def __init__(
        self, metrics: Metrics, max_open: int, num_keys: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metrics, self.max_open, self.num_open, self._clock = metrics, max_open, 0, clock
        self.max_open_of_one = max_open if num_keys <= 1 else max(1, max_open - max_open // num_keys)
        self._open_of: Counter[bytes] = Counter()
        self._held_s: deque[float] = deque(maxlen=NUM_REMEMBERED)  # how long the last requests held their slots
        self._begun_s: dict[object, float] = {}  # of requests that hold slots now

    @contextmanager
    def slots(self, count: int, client: bytes = b"") -> Iterator[None]:
        """Hold so many slots inside this context; QueueFull if they are not free."""
        free = max(min(self.max_open - self.num_open, self.max_open_of_one - self._open_of[client]), 0)
        if count > free:
            self._metrics.count_rejected("queue_full")
            raise QueueFull(count, free, self.wait_s(count - free))
        key = object()
        self._begun_s[key] = begun_s = self._clock()
        self.num_open += count
        self._open_of[client] += count
        try:
            yield
        finally:
            self.num_open -= count
            self._open_of[client] -= count
            del self._begun_s[key]
            self._held_s.append(self._clock() - begun_s)

    def wait_s(self, count: int) -> int:
        """Return the whole seconds until so many more slots will be free, at least 1 and at most LONGEST_S.

        By Little's law num_open slots, each of them held for T seconds, become free at a rate of num_open / T. T is the
        mean of the last requests, or of the requests that hold slots now where that is longer: a server that is stuck
        tells its clients to come less often.
        """
        now_s = self._clock()
        lengths = [self._held_s, [now_s - begun_s for begun_s in self._begun_s.values()]]
        mean_s = max((fmean(each) for each in lengths if each), default=0.0)
        return min(max(math.ceil(mean_s * count / max(self.num_open, 1)), 1), LONGEST_S)


class Pace(Observer):
    """The bound on prompt tokens: it sets `max_prompt_tokens` of a scheduler after each step. bound_s: the longest wait
    of sequences that decode.
    """

    def __init__(self, scheduler: Scheduler, bound_s: float) -> None:
        self._scheduler, self._bound_s = scheduler, bound_s
        self._begun_s, self._cost_s = 0.0, 0.0  # of this step; of a token
        self._num_tokens = 0  # of prompts in this step
        scheduler.max_prompt_tokens = min(FIRST_TOKENS, scheduler.max_step_tokens)

    def phase(self, name: str, plan: Plan | None) -> None:
        if name == "begin":
            self._begun_s = time.perf_counter()
        elif name == "plan" and plan is not None:
            fed = [(work.count - len(work.drafts), work.num_logits) for work in plan.work]
            # A single token without logits is a chunk too: with many prompts at once most of them get no more.
            self._num_tokens = sum(count for count, num_logits in fed if count > 1 or not num_logits)
        elif name == "deliver" and self._num_tokens:
            self._measured(time.perf_counter() - self._begun_s)

    def _measured(self, seconds: float) -> None:
        """Learn what a token costs. A short chunk says little, unless it took too long; a slow step counts at once."""
        limit = self._scheduler.max_prompt_tokens
        if self._num_tokens < limit / 2 and seconds < self._bound_s:
            return
        cost_s = seconds / self._num_tokens
        self._cost_s = max(cost_s, (cost_s + self._cost_s) / 2)
        wanted = int(MARGIN * self._bound_s / self._cost_s)
        self._scheduler.max_prompt_tokens = min(max(wanted, LEAST_TOKENS), self._scheduler.max_step_tokens)
