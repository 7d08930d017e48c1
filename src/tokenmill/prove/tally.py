"""The findings of a case, counted: comparisons, differences, texts that never came."""

from collections import Counter
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from tokenmill.prove.answer import ProofRequest, Text
from tokenmill.prove.compare import TextDifference, first_difference, logprob_distance

MAX_EXAMPLES = 3


@dataclass(frozen=True)
class Example:
    """Two texts of one request that differ, each with its circumstances."""

    ask: ProofRequest
    index: int
    usual: str
    other: str
    one: Text
    two: Text
    difference: TextDifference | None
    logprob_distance: float | None = None

    def facts(self) -> dict[str, Any]:
        """Describe the example for JSON."""
        found = self.difference
        return {
            "request": self.ask.body(None, stream=False),
            "route": f"/v1/{self.ask.route}",
            "choice": self.index,
            "circumstances": [self.usual, self.other],
            "texts": [self.one.text, self.two.text],
            "tokens": [list(each.ids or each.tokens or ()) for each in (self.one, self.two)],
            "finish_reasons": [self.one.reason, self.two.reason],
            "first_difference": None if found is None else {"unit": found.unit, "index": found.index},
            "logprob_difference": self.logprob_distance,
        }


@dataclass
class Count:
    """Comparisons, and how many of them differ."""

    comparisons: int = 0
    differ: int = 0

    def add(self, differs: bool) -> None:
        """Count one comparison more."""
        self.comparisons += 1
        self.differ += differs


@dataclass
class Tally:
    """The result of one case. by: the same counts for (route, temperature). not_offered: the reasons against what the
    case needs.

    is_left_out: the check was not given what the case needs, so that nothing was expected of it.
    """

    name: str
    help: str
    requests: int = 0
    total: Count = field(default_factory=Count)
    by: dict[tuple[str, float], Count] = field(default_factory=dict)
    logprobs: Count = field(default_factory=Count)
    max_logprob_distance: float = 0.0
    empty: int = 0
    lengths: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # hashes of texts, to tell when all are alike
    differences: list[TextDifference] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    not_offered: list[str] = field(default_factory=list)
    is_left_out: bool = False

    def compare(
        self, ask: ProofRequest, pair: tuple[Text, Text], index: int, how: tuple[str, str], tolerance: float | None
    ) -> None:
        """Compare the texts under `index`: the usual one first. how: the circumstances of each. tolerance: how far
        log-probabilities may differ; with None they are not compared.
        """
        one, two = pair
        found = first_difference(one, two)
        key = (ask.route, float(ask.fields.get("temperature", 1.0)))
        for count in (self.total, self.by.setdefault(key, Count())):
            count.add(found is not None)
        self.lengths.append(one.length)
        self.empty += not (one.text and two.text)
        self.seen.add(hash(one.text))
        distance = None if tolerance is None else logprob_distance(one, two)
        is_far = distance is not None and tolerance is not None and distance > tolerance
        if distance is not None:
            self.logprobs.add(is_far)
            self.max_logprob_distance = max(self.max_logprob_distance, distance)
        if found is not None:
            self.differences.append(found)
        if (found is not None or is_far) and len(self.examples) < MAX_EXAMPLES:
            self.examples.append(Example(ask, index, *how, one, two, found, distance))

    @property
    def num_failed(self) -> int:
        """Requests without an answer."""
        return self.failures.total()

    def first(self) -> tuple[str, int, int] | None:
        """Say where texts first differ: in the unit that most of them have, the smallest index and the median."""
        if not self.differences:
            return None
        unit = Counter(each.unit for each in self.differences).most_common(1)[0][0]
        indices = [each.index for each in self.differences if each.unit == unit]
        return unit, min(indices), median_low(indices)
