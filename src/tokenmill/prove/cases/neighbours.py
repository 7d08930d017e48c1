"""Case neighbours: requests with a seed, alone and beside others that have none."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

HOW = ("alone", "beside requests without a seed")
TIMES = 3


class Neighbours(Case):
    """A random state that all requests share would show here."""

    greedy = False

    async def round(self, trial: Trial) -> None:
        asks = trial.asks(max(1, trial.crowd // 2))
        usual = await trial.all_settled(asks)
        for _ in range(TIMES):
            others = [ask.having(seed=None, temperature=1.0) for ask in trial.asks(trial.crowd - len(asks))]
            beside = [trial.alone(other) for other in others]
            trial.compare_all(asks, usual, await trial.together(asks, beside=beside), HOW)
