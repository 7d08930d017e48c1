"""A runner that hands out the rows that a head reads, and gives a model the rows that it reads beside tokens."""

from collections.abc import Sequence as List
from typing import Protocol

from torch import Tensor

from tokenmill.program.runner import Runner, known
from tokenmill.schedule.sequence import Plan


class HiddenRows(Protocol):
    """Whoever keeps the rows; see engine/mtp.py."""

    def given(self, plan: Plan) -> Tensor | None:
        """Make the rows [T, D] that the model reads beside the plan's tokens, if it reads any."""

    def save(self, plan: Plan, firsts: List[int], hidden_TD: Tensor) -> None:
        """Keep rows of a step that is computed. firsts: the first row of each work item."""


class RowsRunner(Runner):
    """The runner that takes the place of another one."""

    def __init__(self, runner: Runner, rows: HiddenRows) -> None:
        vars(self).update(vars(runner))
        self.rows = rows

    def run(self, plan: Plan, fed_R: Tensor | None = None) -> tuple[Plan, Tensor]:
        """See Runner; what the head reads of the plan's tokens is saved."""
        step = self.stage(plan, fed_R)
        step.keeps_hidden, step.given_TD = True, self.rows.given(plan)
        logits_RV, token_ids = self.program.run(step)
        plan, logits_RV = known(plan, step, logits_RV, token_ids) if step.has_unknown else (plan, logits_RV)
        assert step.hidden_TD is not None, "the program keeps it"
        self.rows.save(plan, [span.first for span in step.spans], step.hidden_TD)
        return plan, logits_RV
