"""Case restart: the same requests before and after the server is restarted."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

EACH = 6
HOW = ("before the restart", "after the restart")


class Restarted(Case):
    """For every route and temperature, alone and together."""

    is_once = True

    async def round(self, trial: Trial) -> None:
        """See Case."""
        asks = [ask for variant in trial.variants for ask in trial.asks(EACH, variant=variant)]
        usual = await trial.all_settled(asks)
        await trial.restart_server()
        trial.compare_all(asks, usual, [await trial.alone(ask) for ask in asks], HOW)
        for first in range(0, len(asks), trial.crowd):
            some = slice(first, first + trial.crowd)
            again = await trial.together(asks[some])
            trial.compare_all(asks[some], usual[some], again, ("before the restart", "after it, in a crowd"))
