"""Case again: the same request alone, several times. Where this differs, nothing else can be the same."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

TIMES = 4


class Again(Case):
    """Requests one after the other, with nothing beside them."""

    async def round(self, trial: Trial) -> None:
        ask = trial.ask()
        usual = await trial.settled(ask)
        for number in range(TIMES):
            how = ("alone, the second time", f"alone, time {number + 3}")
            trial.compare(ask, usual, await trial.alone(ask), how)
