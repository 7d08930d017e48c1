"""Case restart: the same requests before and after the server is restarted."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

EACH = 6
COLD, WARM = "the first time", "the second time"


class Restarted(Case):
    """For every route and temperature: the first answers to a prompt, the second ones, and those in a crowd."""

    is_once = True

    async def round(self, trial: Trial) -> None:
        asks = [ask for variant in trial.variants for ask in trial.asks(EACH, variant=variant)]
        before = [(await trial.alone(ask), await trial.alone(ask)) for ask in asks]
        await trial.restart_server()
        for ask, (cold, warm) in zip(asks, before, strict=True):
            trial.compare(ask, cold, await trial.alone(ask), (f"{COLD}, before", f"{COLD}, after the restart"))
            trial.compare(ask, warm, await trial.alone(ask), (f"{WARM}, before", f"{WARM}, after the restart"))
        usual = [warm for _, warm in before]
        for first in range(0, len(asks), trial.crowd):
            some = slice(first, first + trial.crowd)
            again = await trial.together(asks[some])
            trial.compare_all(asks[some], usual[some], again, ("before the restart", "after it, in a crowd"))
