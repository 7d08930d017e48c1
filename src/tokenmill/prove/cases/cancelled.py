"""Case cancelled: requests beside streams whose clients leave in the middle."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

HOW = ("alone", "beside streams that were closed")
TIMES = 3


class Cancelled(Case):
    """Each neighbour leaves after another number of events; then the same once more, with what they left behind."""

    needs = ("stream",)

    async def round(self, trial: Trial) -> None:
        asks = trial.asks(max(1, trial.crowd // 2))
        usual = await trial.all_settled(asks)
        for _ in range(TIMES):
            leaving = trial.asks(max(1, trial.crowd - len(asks)))
            beside = [trial.leave(ask, 1 + 2 * number) for number, ask in enumerate(leaving)]
            trial.compare_all(asks, usual, await trial.together(asks, beside=beside), HOW)
        trial.compare_all(asks, usual, await trial.together(asks), ("alone", "after streams that were closed"))
