"""Case crowd: the same requests alone, and together with others."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

HOW = ("alone", "in a crowd")


class Crowd(Case):
    """As many requests together as --concurrency says: in their order, in the opposite one, and half of them twice."""

    async def round(self, trial: Trial) -> None:
        asks = trial.asks(trial.crowd)
        usual = await trial.all_settled(asks)
        half = max(1, trial.crowd // 2)
        indices = list(range(len(asks)))
        for order in (indices, indices[::-1], indices[:half] * 2, indices[half:] * 2):
            some, expected = [asks[index] for index in order], [usual[index] for index in order]
            trial.compare_all(some, expected, await trial.together(some), HOW)
