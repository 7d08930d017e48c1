"""Learning what a server offers: its model, its routes, and for each route the fields that have an effect.

Each field is tried by a request of its own, since strict servers refuse what others ignore. What is not offered has a
reason, which the table shows: it is never counted as a pass.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenmill.errors import TokenmillError
from tokenmill.prove.answer import CHAT, PLAIN, Answer, ProofRequest
from tokenmill.prove.client import Client, Lost, Refused
from tokenmill.prove.greeting import find_model, wants_key
from tokenmill.prove.prompts import prompt

GREEDY = {"temperature": 0}
TEMPERATURE = 0.8
_LONG_WORDS, _SHORT_WORDS = (600, 300, 150, 80, 40), (24, 12, 6, 3)
_MARGIN = 2  # a prompt of so many times the words must be taken: in another script a word has more tokens
_PROBE_TOKENS, _SEED = 8, 7
_SEED_TRIES = 4


@dataclass
class RouteOffer:
    """The offer of one route. fields: added to every request. missing: feature → why it is not there.

    words, long_words: lengths of the longest ordinary prompt, and of a long one, that are taken.
    """

    route: str
    fields: dict[str, Any] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    words: int = _SHORT_WORDS[0]
    long_words: int = _LONG_WORDS[0]

    def why_not(self, feature: str) -> str | None:
        """Say why this route has not this feature; None if it has."""
        return self.missing.get(feature)

    def lacks(self, needs: tuple[str, ...]) -> Iterator[str]:
        """Yield the features among these that it has not, each with the reason."""
        for feature in needs:
            if (reason := self.missing.get(feature)) is not None:
                yield f"{feature}: {reason}"


@dataclass
class Offer:
    """The offer of a server. missing: route → why it is not there."""

    model: str | None
    routes: list[RouteOffer] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    fingerprint: str | None = None

    @property
    def compares(self) -> str:
        """The unit in which texts are compared."""
        missing = [each.missing for each in self.routes]
        if not any("token ids" in each for each in missing):
            return "token ids"
        return "characters" if any("logprobs" in each for each in missing) else "tokens"


async def find_offer(client: Client, listen: Callable[[str], None]) -> Offer:
    """Find out what the server offers; TokenmillError, with the way out, where nothing can be asked of it."""
    client.model = await find_model(client)
    offer = Offer(client.model)
    for route in (PLAIN, CHAT):
        listen(f"what {client.settings.at(route)} offers")
        try:
            found = await _Probe(client, RouteOffer(route)).run(offer)
        except Lost as error:
            if isinstance(error, Refused) and error.status in (401, 403):
                raise TokenmillError(wants_key(client.settings, client.settings.at(route), error.status)) from None
            offer.missing[route] = str(error)
        else:
            offer.routes.append(found)
    if not offer.routes:
        reasons = "; ".join(f"/v1/{route}: {reason}" for route, reason in offer.missing.items())
        raise TokenmillError(
            f"nothing can be asked of {client.settings.url} ({reasons}): give the address before /v1 of an "
            "OpenAI-compatible server, and with --model a name that it serves"
        )
    return offer


class _Probe:
    """The requests that find out what one route offers."""

    def __init__(self, client: Client, found: RouteOffer) -> None:
        self.client, self.found, self.number = client, found, 0

    async def run(self, offer: Offer) -> RouteOffer:
        """Find out what the route offers; Lost if it does not answer at all."""
        _, reader = await self.client.send(await self._plainest())
        offer.fingerprint = reader.fingerprint or offer.fingerprint
        await self._find_units()
        await self._find_features()
        self.found.long_words = await self._longest(_LONG_WORDS)
        return self.found

    def _ask(self, words: int = 3, **fields: Any) -> ProofRequest:
        """Make a request with a new prompt, and with the fields that have been found to be accepted."""
        self.number += 1
        text = prompt(self.client.settings.seed, -self.number, words, words)
        merged = {"max_tokens": _PROBE_TOKENS, **GREEDY, **self.found.fields, **fields}
        return ProofRequest(self.found.route, text, merged)

    async def _plainest(self) -> ProofRequest:
        """Return a request that is answered, and note the longest ordinary prompt: a context may be short."""
        for words in _SHORT_WORDS[:-1]:
            self.found.words = words
            try:
                await self.client.send(self._ask(_MARGIN * words))
            except Refused as error:
                if error.status != 400:
                    raise
            else:
                return self._ask(words)
        self.found.words = _SHORT_WORDS[-1]
        return self._ask(self.found.words)

    async def _longest(self, lengths: tuple[int, ...]) -> int:
        """Return the length in words of the longest prompt that is taken."""
        for words in lengths:
            try:
                await self.client.send(self._ask(_MARGIN * words))
            except Lost:
                continue
            return words
        return self.found.words

    async def _find_units(self) -> None:
        """Try token ids, and log-probabilities where these are wanted or are the only way to see tokens."""
        await self._try("token ids", {"return_token_ids": True}, lambda texts: texts[0].ids is not None, keep=True)
        needed = self.client.settings.logprobs or "token ids" in self.found.missing
        wanted = {"logprobs": True} if self.found.route == CHAT else {"logprobs": 1}
        await self._try("logprobs", wanted, lambda texts: texts[0].logprobs is not None, keep=needed)

    async def _find_features(self) -> None:
        # vLLM refuses several greedy texts, which would all be alike.
        await self._try("greedy n", {"n": 2}, lambda texts: len(texts) == 2)
        if (reason := self.found.missing.get("greedy n")) is not None:
            await self._try("n", {"n": 2, "temperature": TEMPERATURE}, lambda texts: len(texts) == 2)
            if "n" in self.found.missing:
                self.found.missing["n"] = reason
        try:
            await self.client.send(self._ask(), stream=True)
        except Lost as error:
            self.found.missing["stream"] = str(error)
        if self.found.route == CHAT:
            self.found.missing["ids as a prompt"] = "a conversation is text"
        elif "token ids" not in self.found.missing:
            await self._find_ids()
        else:
            self.found.missing["ids as a prompt"] = "no token ids to continue"
        await self._find_seed()

    async def _find_ids(self) -> None:
        try:
            texts, _ = await self.client.send(self._ask())
            await self.client.send(ProofRequest(self.found.route, tuple(texts[0].ids or ()), self._ask().fields))
        except Lost as error:
            self.found.missing["ids as a prompt"] = str(error)

    async def _find_seed(self) -> None:
        """Find out whether a seed has an effect: not if several requests with it are all answered differently."""
        ask = self._ask(temperature=TEMPERATURE, max_tokens=2 * _PROBE_TOKENS, seed=_SEED)
        try:
            same = [(await self.client.send(ask))[0] for _ in range(_SEED_TRIES)]
            others = [(await self.client.send(ask.having(seed=_SEED + 1 + more)))[0] for more in range(_SEED_TRIES)]
        except Lost as error:
            self.found.missing["seed"] = str(error)
            return
        texts = [each[0].text for each in same if each]
        if len(set(texts)) == len(texts):
            number = len(texts)
            self.found.missing["seed"] = f"{number} requests with one seed gave {number} texts: it has no effect"
        elif len({each[0].text for each in [*same, *others] if each}) == 1:
            self.found.missing["seed"] = "every seed gave one text: neither seed nor temperature has an effect"
        if "n" in self.found.missing or "seed" in self.found.missing:
            self.found.missing["seed + index"] = self.found.missing.get("n") or self.found.missing["seed"]
            return
        at_once, _ = await self.client.send(ask.having(n=3))
        alone = [same[-1][0], others[0][0], others[1][0]]
        if not any(one.text == other.text for one, other in zip(at_once[1:], alone[1:])):
            self.found.missing["seed + index"] = "the texts of n have other seeds than the requested one and the next"

    async def _try(
        self, feature: str, fields: Mapping[str, Any], shows: Callable[[Answer], bool], keep: bool = False
    ) -> None:
        """Note whether a field is taken and has its effect; keep: it then goes into every request."""
        try:
            texts, _ = await self.client.send(self._ask(**fields))
        except Lost as error:
            self.found.missing[feature] = str(error)
            return
        if not (texts and shows(texts)):
            self.found.missing[feature] = f"{next(iter(fields))} has no effect"
        elif keep:
            self.found.fields.update(fields)
