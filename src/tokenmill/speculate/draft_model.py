"""Proposer draft_model: a second model, or the same one with smaller weights, writes ahead of the engine's model.

It draws with the random number of the token's position, so it agrees with the engine's model at any temperature nearly
as often as at temperature 0 (arXiv 2408.07978).
"""

from collections.abc import Sequence as List

from tokenmill.schedule.sequence import Sequence
from tokenmill.speculate.proposer import Forced, Proposer, ProposerContext


class DraftModel(Proposer):
    """The proposer that drafts for every sequence that decodes, all of them in one batch."""

    def __init__(self, facts: ProposerContext) -> None:
        assert facts.draft is not None, "checked with the settings"
        self._draft = facts.draft

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        decoding = [each for each in sequences if each.num_pending_tokens == 1 and each.score_from is None]
        return self._draft.continuations(decoding, limit) if decoding else {}
