"""One round of a case: fresh requests for one route and one temperature, sent alone or together, and compared."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.prove.answer import Answer, ProofRequest
from tokenmill.prove.client import Client, Lost
from tokenmill.prove.offer import GREEDY, TEMPERATURE, RouteOffer
from tokenmill.prove.prompts import prompt
from tokenmill.prove.settings import MAX_SEED
from tokenmill.prove.tally import Tally

Restart = Callable[[], Awaitable[None]]
Answers = Sequence[Answer | None]


@dataclass(frozen=True)
class Variant:
    """A route, greedy or with a seed."""

    offer: RouteOffer
    is_seeded: bool


@dataclass
class Trial:
    """One round of a case, and what the case may do in it. variants: all that the server offers for this case."""

    client: Client
    tally: Tally
    variant: Variant
    variants: Sequence[Variant]
    numbers: Iterator[int]
    restart: Restart | None = None
    listen: Callable[[], None] = field(default=lambda: None)

    @property
    def crowd(self) -> int:
        """The number of requests that go together."""
        return self.client.settings.concurrency

    @property
    def is_seeded(self) -> bool:
        """True if this round samples, with seeds."""
        return self.variant.is_seeded

    def offers(self, feature: str) -> bool:
        """Tell whether the route has a feature."""
        return self.variant.offer.why_not(feature) is None

    def ask(self, is_long: bool = False, variant: Variant | None = None, **fields: Any) -> ProofRequest:
        """Make a new request, whose prompt was not sent before."""
        chosen = variant or self.variant
        number, offer, settings = next(self.numbers), chosen.offer, self.client.settings
        most = offer.long_words if is_long else offer.words
        text = prompt(settings.seed, number, most, most if is_long else 1)
        seeded = {"temperature": TEMPERATURE, "seed": (settings.seed * 7919 + number * 104729) % (MAX_SEED - 1000)}
        sampling = seeded if chosen.is_seeded else GREEDY
        given = {"max_tokens": settings.max_tokens, **sampling, **offer.fields}
        return ProofRequest(offer.route, text, given).having(**fields)

    def asks(self, count: int, **how: Any) -> list[ProofRequest]:
        """Make this many new requests."""
        return [self.ask(**how) for _ in range(count)]

    async def alone(self, ask: ProofRequest, stream: bool = False) -> Answer | None:
        """Return the answer while nothing else is asked; None where no answer came, which is counted."""
        self.tally.requests += 1
        try:
            texts, _ = await self.client.send(ask, stream)
        except Lost as error:
            self.tally.failures[str(error)] += 1
            return None
        if len(texts) != ask.fields.get("n", 1):
            self.tally.failures[f"{len(texts)} texts for n = {ask.fields.get('n', 1)}"] += 1
            return None
        return texts

    async def settled(self, ask: ProofRequest) -> Answer | None:
        """Return the second answer alone: a difference that a prefix cache makes is not blamed on something else."""
        await self.alone(ask)
        return await self.alone(ask)

    async def all_settled(self, asks: Iterable[ProofRequest]) -> list[Answer | None]:
        """Return the settled answer of each, one after the other."""
        return [await self.settled(ask) for ask in asks]

    async def together(
        self, asks: Sequence[ProofRequest], stream: bool = False, beside: Sequence[Awaitable[Any]] = ()
    ) -> list[Answer | None]:
        """Return the answers of requests in flight together, with others beside them that are not looked at."""
        tasks = [asyncio.ensure_future(self._ignored(each)) for each in beside]
        mine = [asyncio.ensure_future(self.alone(ask, stream)) for ask in asks]
        try:
            return await asyncio.gather(*mine)
        except asyncio.CancelledError:
            for task in (*tasks, *mine):
                task.cancel()
            raise
        finally:
            await asyncio.gather(*tasks, *mine, return_exceptions=True)

    async def leave(self, ask: ProofRequest, num_events: int) -> None:
        """Begin a stream, and close the connection after this many events."""
        self.tally.requests += 1
        await self.client.leave(ask, num_events)

    async def _ignored(self, work: Awaitable[Any]) -> None:
        try:
            await work
        except Lost as error:
            self.tally.failures[f"a neighbour: {error}"] += 1

    def compare(self, ask: ProofRequest, usual: Answer | None, other: Answer | None, how: tuple[str, str]) -> None:
        """Compare each text with the one of the same index; nothing where an answer did not come."""
        if usual is not None and other is not None:
            settings = self.client.settings
            tolerance = settings.tolerance if settings.logprobs else None
            for index, pair in enumerate(zip(usual, other)):
                self.tally.compare(ask, pair, index, how, tolerance)
            self.listen()

    def compare_all(self, asks: Sequence[ProofRequest], usual: Answers, other: Answers, how: tuple[str, str]) -> None:
        """Compare the answers of each of several requests."""
        for ask, one, two in zip(asks, usual, other, strict=True):
            self.compare(ask, one, two, how)

    async def restart_server(self) -> None:
        """Restart the server and wait until it answers."""
        if self.restart is None:
            raise TokenmillError("nothing says how to restart the server: give --restart COMMAND")
        await self.restart()
