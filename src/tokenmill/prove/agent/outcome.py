"""The outcome of a check of an agent's log: its turns, each with the tokens that were found and computed again."""

from dataclasses import dataclass, field

from tokenmill.prove.agent.log import Recorded
from tokenmill.prove.agent.routes import TokenUsage

UNTOLD = TokenUsage(None, None)


@dataclass(frozen=True)
class Parting:
    """The place where a prompt parts from the earlier one that is most like it: after this many tokens of it."""

    number: int
    num_common: int
    num_tokens: int


@dataclass
class Turn:
    """One request and what came of it. num_before: tokens that stood at the beginning of an earlier prompt or its
    answer; None if the server does not tell token ids. refusal: the server's words in place of an answer.
    """

    recorded: Recorded
    usage: TokenUsage = UNTOLD
    num_before: int | None = None
    parting: Parting | None = None
    seconds: float = 0.0
    refusal: str = ""

    @property
    def num_again(self) -> int | None:
        """The tokens that were computed though an earlier request had computed them."""
        if self.num_before is None or self.usage.num_cached is None:
            return None
        return max(0, self.num_before - self.usage.num_cached)

    @property
    def num_new(self) -> int | None:
        """The tokens of the prompt that no earlier request had."""
        if self.num_before is None or self.usage.num_prompt is None:
            return None
        return self.usage.num_prompt - self.num_before


@dataclass
class AgentOutcome:
    """The findings of a check. skipped: how many lines of each path ask for nothing that is computed."""

    turns: list[Turn] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def num_before(self) -> int:
        """Tokens of all turns that stood before."""
        return sum(turn.num_before or 0 for turn in self.turns if turn.num_again is not None)

    @property
    def num_again(self) -> int:
        """Tokens of all turns that stood before and were computed again."""
        return sum(turn.num_again or 0 for turn in self.turns)

    @property
    def share(self) -> float | None:
        """The share of the tokens that stood before which were found; None if no token stood before."""
        return 1 - self.num_again / self.num_before if self.num_before else None
