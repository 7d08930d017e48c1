"""Case streamed: the same request whole, and as a stream whose pieces are joined."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial

HOW = ("whole", "streamed")


class Streamed(Case):
    """Alone, and several streams together."""

    needs = ("stream",)

    async def round(self, trial: Trial) -> None:
        asks = trial.asks(max(2, trial.crowd // 2))
        usual = await trial.all_settled(asks)
        for ask, whole in zip(asks, usual, strict=True):
            trial.compare(ask, whole, await trial.alone(ask, stream=True), HOW)
        trial.compare_all(asks, usual, await trial.together(asks, stream=True), ("whole, alone", "streams together"))
