"""Case lengths: short prompts while long ones are computed, and the long ones beside short ones."""

from tokenmill.prove.cases.case import Case
from tokenmill.prove.trial import Trial


class Lengths(Case):
    """A server may compute a long prompt in chunks, and other texts' tokens in the same steps."""

    async def round(self, trial: Trial) -> None:
        long = trial.asks(2, is_long=True)
        short = trial.asks(max(2, trial.crowd - len(long)))
        usual = await trial.all_settled(short)
        found = await trial.together([*long, *short])  # these long ones are new
        trial.compare_all(short, usual, found[len(long) :], ("alone", "beside long prompts"))
        alone = await trial.all_settled(long)
        again = await trial.together([*short, *long])
        trial.compare_all(long, alone, again[len(short) :], ("alone", "beside short prompts"))
        trial.compare_all(short, usual, again[: len(short)], ("alone", "beside long prompts"))
