"""A check from its first request to its last: cases take turns, each a round at a time, until a bound is reached."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from tokenmill.errors import TokenmillError
from tokenmill.hub.progress import Progress, Silent
from tokenmill.prove.cases.case import Case
from tokenmill.prove.client import Client, Spent
from tokenmill.prove.greeting import restart_by
from tokenmill.prove.offer import Offer, RouteOffer, find_offer
from tokenmill.prove.settings import Settings
from tokenmill.prove.tally import Tally
from tokenmill.prove.trial import Restart, Trial, Variant
from tokenmill.registry import PROOFS, help_of, lookup

_LINE_S = 20.0  # between two lines that say how far it is


@dataclass
class ProofOutcome:
    """The outcome of a check. ended_by: the bound that was reached, or what ended the check before one was."""

    settings: Settings
    offer: Offer
    tallies: list[Tally]
    duration_s: float = 0.0
    num_requests: int = 0
    num_waits: int = 0
    ended_by: str = ""
    error: TokenmillError | None = None
    interrupted: bool = False

    @property
    def num_comparisons(self) -> int:
        """Texts that were compared with another one of the same request."""
        return sum(each.total.comparisons for each in self.tallies)

    @property
    def num_differences(self) -> int:
        """Compared texts that differ, and log-probabilities that do."""
        return sum(each.total.differ + each.logprobs.differ for each in self.tallies)

    @property
    def compared_nothing(self) -> dict[str, str]:
        """The cases that compared no text, or no log-probability where they were wanted, each with the reason."""
        found = {}
        for each in self.tallies:
            if each.is_left_out:
                continue
            if not each.total.comparisons:
                ended = f"{self.ended_by} came before it had compared a text"
                found[each.name] = "; ".join(each.not_offered) if each.not_offered else ended
            elif self.settings.logprobs and not each.logprobs.comparisons:
                found[each.name] = "no log-probabilities came that could be compared"
        return found

    @property
    def num_failed(self) -> int:
        """Requests that were not answered."""
        return sum(each.num_failed for each in self.tallies)


def prove(settings: Settings, restart: Restart | None = None, progress: Progress | None = None) -> ProofOutcome:
    """Check a server. Ctrl-C ends it early, and what was found so far is the outcome; so does a server that is full.

    restart: restarts the server in the place of `settings.restart`, and returns when the old server has ended.
    """
    return asyncio.run(_Run(settings, restart, progress or Silent()).all())


@dataclass
class _Planned:
    """A case that the server can be asked, and what it has found so far."""

    case: Case
    tally: Tally
    variants: Sequence[Variant]


@dataclass
class _Run:
    settings: Settings
    restart: Restart | None
    progress: Progress
    numbers: Iterator[int] = field(default_factory=partial(count, 1))  # of prompts
    next_line_s: float = 0.0

    async def all(self) -> ProofOutcome:
        settings, start_s = self.settings, time.monotonic()
        self.client = Client(settings)
        try:
            offer = await self._find_offer()
            plans = [self._plan(name, offer) for name in settings.names]
            self.outcome = ProofOutcome(settings, offer, [plan.tally for plan in plans])
            await self._rounds([plan for plan in plans if plan.variants], start_s + settings.time_s - time.monotonic())
        finally:
            await self.client.close()
        self.outcome.duration_s = time.monotonic() - start_s
        self.outcome.num_requests, self.outcome.num_waits = self.client.num_sent, self.client.num_waits
        return self.outcome

    async def _find_offer(self) -> Offer:
        bound = f"--time {self.settings.time_s:g}"
        try:
            async with asyncio.timeout(self.settings.time_s):
                return await find_offer(self.client, self.progress.stage)
        except Spent:
            bound = f"--requests {self.settings.requests}"
        except TimeoutError:
            pass
        raise TokenmillError(f"{bound} is too little to learn what {self.settings.url} offers: give more")

    def _plan(self, name: str, offer: Offer) -> _Planned:
        case: Case = lookup(PROOFS, name, "--case")()
        tally = Tally(name, help_of(PROOFS[name]))
        variants = []
        for route in offer.routes:
            missing = list(route.lacks(case.needs))
            if not missing:
                variants += list(_variants(case, route, missing))
            tally.not_offered += [f"/v1/{route.route}: {reason}" for reason in missing]
        tally.not_offered += [f"/v1/{route}: {reason}" for route, reason in offer.missing.items()]
        if case.is_once and self.restart is None and self.settings.restart is None:
            return _Planned(case, Tally(name, tally.help, not_offered=["give --restart COMMAND"], is_left_out=True), [])
        return _Planned(case, tally, variants)

    async def _rounds(self, plans: Sequence[_Planned], left_s: float) -> None:
        outcome = self.outcome
        try:
            async with asyncio.timeout(left_s):
                await self._take_turns(plans)
        except TimeoutError:
            outcome.ended_by = f"--time {self.settings.time_s:g}"
        except Spent:
            outcome.ended_by = f"--requests {self.settings.requests}"
        except TokenmillError as error:
            outcome.ended_by, outcome.error = "an error", error
        except asyncio.CancelledError:  # how asyncio.run tells of Ctrl-C
            outcome.interrupted, outcome.ended_by = True, "Ctrl-C"

    async def _take_turns(self, plans: Sequence[_Planned]) -> None:
        live = list(plans)
        for turn in count():
            for place, plan in enumerate(list(live)):
                await self._round(plan, turn + place)  # each begins with another route or temperature
                if plan.case.is_once:
                    live.remove(plan)
                if self._has_enough():
                    self.outcome.ended_by = f"--comparisons {self.settings.comparisons}"
                    return
            if not live:
                self.outcome.ended_by = "the end of the cases"
                return

    async def _round(self, plan: _Planned, turn: int) -> None:
        variant = plan.variants[turn % len(plan.variants)]
        if time.monotonic() >= self.next_line_s:
            self.next_line_s = time.monotonic() + _LINE_S
            found = self.outcome.num_differences
            self.progress.stage(f"{self.outcome.num_comparisons:,} compared, {found:,} differ; {plan.tally.name}")
            self._show()
        trial = Trial(self.client, plan.tally, variant, plan.variants, self.numbers, self._restart, self._show)
        await plan.case.round(trial)

    async def _restart(self) -> None:
        if self.restart is not None:
            await self.restart()
        else:
            await restart_by(self.settings.restart or "", self.client)

    def _has_enough(self) -> bool:
        wanted = self.settings.comparisons
        return wanted is not None and self.outcome.num_comparisons >= wanted

    def _show(self) -> None:
        wanted = self.settings.comparisons
        if wanted is not None:
            self.progress.advance(min(self.outcome.num_comparisons, wanted), wanted)
        else:
            self.progress.advance(self.client.num_sent, self.settings.requests)


def _variants(case: Case, route: RouteOffer, missing: list[str]) -> Iterator[Variant]:
    """Yield the temperatures that a case can be asked at; `missing` gets the reasons against the others."""
    for is_seeded, wanted, needs in ((False, case.greedy, case.greedy_needs), (True, case.seeded, ("seed",))):
        if wanted and not (reasons := list(route.lacks(needs))):
            yield Variant(route, is_seeded)
        elif wanted:
            missing += reasons
