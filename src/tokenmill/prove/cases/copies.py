"""Case copies: several texts of one request, at once and one by one.

OpenAI's API does not say which seed the texts after the first have. Greedy, all of them must be the text of n = 1. With
a seed, the texts of one index must be the same whenever the request is sent; and where the server gives text i the
seed that is i more (as vLLM and tokenmill do), also that of a request with that seed.
"""

from tokenmill.prove.answer import ProofRequest
from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

COPIES = 4


class Copies(Case):
    """n texts at once: repeated, streamed, beside others, and against single ones."""

    needs = ("n",)
    greedy_needs = ("greedy n",)

    async def round(self, trial: Trial) -> None:
        ask = trial.ask(n=COPIES)
        at_once = await trial.settled(ask)
        trial.compare(ask, at_once, await trial.alone(ask), ("n at once", "n at once, once more"))
        if trial.offers("stream"):
            streamed = await trial.alone(ask, stream=True)
            trial.compare(ask, at_once, streamed, ("n at once, whole", "n at once, streamed"))
        others = trial.asks(max(1, trial.crowd // COPIES))
        first, *_, last = await trial.together([ask, *others, ask])
        for crowded in (first, last):
            trial.compare(ask, at_once, crowded, ("n at once, alone", "n at once, in a crowd"))
        if not trial.is_seeded or trial.offers("seed + index"):
            await self._one_by_one(trial, ask)

    async def _one_by_one(self, trial: Trial, ask: ProofRequest) -> None:
        at_once = await trial.alone(ask)
        for index in range(COPIES):
            own = {"seed": ask.fields["seed"] + index} if trial.is_seeded else {}
            single = ask.having(n=None, **own)
            usual, text = await trial.alone(single), None if at_once is None else [at_once[index]]
            trial.compare(single, usual, text, ("one by one", f"n at once, text {index}"))
