"""Observers of the loop, called at every step in the thread that runs it. They measure, and change nothing."""

from torch import Tensor

from tokenmill.schedule.sequence import Plan


class Observer:
    """Does nothing; a subclass overrides the calls that it needs. It takes part inside `Core.observed_by`.

    in_order: it needs each step to be read before the next begins, so async scheduling is off meanwhile.
    """

    in_order = False

    def phase(self, name: str, plan: Plan | None) -> None:
        """A phase has ended: begin, plan (with the plan), run, sample (with the plan as it was computed), deliver."""

    def logits(self, plan: Plan, logits_RV: Tensor) -> None:
        """The wanted rows of a plan, as computed."""
