"""What a proposer is. A guess can cost time but never change the text: every drafted position is sampled by the target
itself, with that position's own number (arXiv 2408.07978), so proposers need no correctness, only luck.
"""

from collections.abc import Sequence as List
from typing import Protocol

from tokenmill.schedule.sequence import Sequence

__all__ = ["PROPOSERS", "NoProposer", "Proposer"]

PROPOSERS = {
    "none": "tokenmill.speculate.proposer:NoProposer",
    "prompt_lookup": "tokenmill.speculate.prompt_lookup:PromptLookup",
}


class Proposer(Protocol):
    """Guesses what follows."""

    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """Sequence id → at most `limit` tokens that may follow its own. Sequences may be left out."""


class NoProposer:
    """Speculation off."""

    def propose(self, sequences: List[Sequence], limit: int) -> dict[int, list[int]]:
        """Nothing."""
        del sequences, limit
        return {}
