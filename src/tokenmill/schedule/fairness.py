"""Fairness: clients share the places, prompts share the tokens of a step.

A client is whatever a sequence names as its client, a server's key for example. Each has a counter of the tokens that
were computed for it, and waiting sequences of the client with the smallest counter run first (virtual token counters:
Sheng et al. 2024, arXiv 2401.00588). A client that comes back after a pause begins at the smallest counter of the
clients that are there, so nobody saves up turns by being away. With one client nothing of this has an effect.
"""

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as List

from tokenmill.schedule.sequence import Sequence


class Clients:
    """The clients of one scheduler. num_fed: for each client, the tokens that were planned for it."""

    def __init__(self) -> None:
        self.num_fed: Counter[bytes] = Counter()

    @property
    def _is_one(self) -> bool:
        return len(self.num_fed) <= 1

    def arrive(self, client: bytes, unfinished: Iterable[Sequence]) -> None:
        """Note that a sequence of this client will wait. unfinished: the sequences that wait and run already."""
        if self._is_one and client in self.num_fed:
            return
        there = {each.client for each in unfinished}
        least = min((self.num_fed[each] for each in there), default=0)
        own = self.num_fed[client]
        self.num_fed[client] = own if client in there else max(own, least)

    def next_of(self, waiting: List[Sequence], running: Iterable[Sequence]) -> Sequence:
        """Choose the sequence to run next: by priority, then clients without a running one, then by the counters."""
        if self._is_one:
            return waiting[0]
        have = {each.client for each in running}
        return min(waiting, key=lambda one: (one.priority, one.client in have, self.num_fed[one.client], one.arrival))

    def gives_way(self, waiting: List[Sequence], running: List[Sequence]) -> Sequence | None:
        """Choose a sequence to preempt where all places are taken, so that a client without a running one gets a place.

        The client with the most places gives one up, if it has more than its share and more than one: the only one
        would come back at the next step, and nobody would get on.
        """
        if self._is_one:
            return None
        counts = Counter(each.client for each in running)
        first = self.next_of(waiting, running)
        most = max(counts, key=lambda client: (counts[client], client))
        if first.client in counts or counts[most] <= max(1, len(running) // (len(counts) + 1)):
            return None
        last = [each for each in running if each.client == most][-1]
        return last if last.priority >= first.priority else None


def shares(pending: List[int], budget: int) -> list[int]:
    """Decide how many tokens of each prompt a step takes, at least one. pending: the tokens that each could take, the
    oldest prompt first.

    The oldest gets at least half, the others what is left, the shortest first: neither waits for the other.
    """
    taken, left = [1] * len(pending), max(budget - len(pending), 0)

    def give(index: int, most: int) -> None:
        nonlocal left
        more = min(pending[index] - taken[index], most, left)
        taken[index] += more
        left -= more

    if pending:
        give(0, -(-left // 2))
    for index in sorted(range(1, len(pending)), key=lambda index: pending[index]):
        give(index, left)
    if pending:
        give(0, left)
    return taken
