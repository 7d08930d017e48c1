"""Case crowd: the same requests alone, and together with others."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

HOW = ("alone", "in a crowd")


class Crowd(Case):
    """As many requests together as --concurrency says: in their order, in the opposite one, and each twice."""

    async def round(self, trial: Trial) -> None:
        """See Case."""
        asks = trial.asks(trial.crowd)
        usual = await trial.all_settled(asks)
        trial.compare_all(asks, usual, await trial.together(asks), HOW)
        trial.compare_all(asks[::-1], usual[::-1], await trial.together(asks[::-1]), HOW)
        half = max(1, trial.crowd // 2)
        twice = [*asks[:half], *asks[:half]]
        trial.compare_all(twice, [*usual[:half], *usual[:half]], await trial.together(twice), HOW)
