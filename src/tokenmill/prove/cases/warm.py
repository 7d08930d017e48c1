"""Case warm: a prompt that was never sent, sent again, and after a longer one that begins with it."""

from dataclasses import replace

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial


class Warm(Case):
    """A prefix cache holds more of a prompt each time."""

    async def round(self, trial: Trial) -> None:
        for is_long in (False, True):
            ask = trial.ask(is_long=is_long)
            cold = await trial.alone(ask)
            warm = await trial.alone(ask)
            trial.compare(ask, cold, warm, ("the first time", "the second time"))
            longer = replace(ask, prompt=f"{ask.prompt} and what came of it in the end")
            after = await trial.alone(longer)
            trial.compare(ask, cold, await trial.alone(ask), ("the first time", "after a longer one that begins alike"))
            trial.compare(
                longer, after, await trial.alone(longer), ("after a shorter one that begins alike", "the second time")
            )
