"""The record Choosing: all that decides the next token of a sequence, beside the model and its own tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tokenmill.schedule.matcher import Constraint
from tokenmill.schedule.thinking import ThinkingBudget
from tokenmill.settings.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Choosing:
    """One record, handed on whole to sessions, forks, drafts and the sampler's rows.

    stop_ids: token id → the finish reason it gives. penalties_from: the position from which presence and frequency
    penalties count; None is the end of the prompt. bad_words: token ids of each word, whose last must not come behind
    the others. constraint: what the tokens from constrained_from on fit; None is the end of the prompt.
    thinking: the limit of what the model thinks, from the same position on.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop_ids: Mapping[int, str] = field(default_factory=dict)
    penalties_from: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    constraint: Constraint | None = None
    thinking: ThinkingBudget | None = None
    constrained_from: int | None = None

    @property
    def is_constrained(self) -> bool:
        """Whether a mask depends on the tokens before a choice."""
        return self.constraint is not None or self.thinking is not None

    def looks_back(self, num_generated: int) -> bool:
        """Whether the choice after so many tokens, or what is reported of it, needs their values on the host."""
        thinks = self.thinking is not None and num_generated < self.thinking.num_concerned
        return self.constraint is not None or thinks or self.params.looks_back
