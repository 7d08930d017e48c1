"""Case continued: a text in one piece, and from its middle on: the prompt and the first tokens, as ids, are a prompt.

What was decoded token by token is then computed as a prompt, with the same result. Greedy only: which random number a
seed gives to the token at a position is no part of OpenAI's API.
"""

from dataclasses import replace

from tokenmill.prove.answer import Text
from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

CUTS = 4


class Continued(Case):
    """Needs the ids of tokens, and prompts as ids: vLLM's fields."""

    needs = ("ids as a prompt",)
    seeded = False

    async def round(self, trial: Trial) -> None:
        ask = trial.ask()
        words = await trial.alone(ask)
        if words is None or (ids := words[0].ids) is None or len(ids) < 2:
            return
        ask = replace(ask, prompt=ids)  # any ids will do; these are of the model's own making
        whole = await trial.settled(ask)
        if whole is None or (made := whole[0].ids) is None:
            return
        for cut in range(1, len(made), max(1, len(made) // CUTS)):
            rest = replace(ask, prompt=(*ids, *made[:cut])).having(max_tokens=ask.fields["max_tokens"] - cut)
            found = await trial.settled(rest)
            usual = [_of_ids(made[cut:], whole[0])]
            other = None if found is None else [_of_ids(found[0].ids or (), found[0])]
            trial.compare(rest, usual, other, ("in one piece", f"continued after {cut} tokens"))


def _of_ids(ids: tuple[int, ...], text: Text) -> Text:
    """Make a text of ids alone: how the first of them is written may depend on what was before it."""
    return Text(" ".join(map(str, ids)), text.reason, ids)
