"""The record Choosing: all that decides the next token of a sequence, beside the model and its own tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tokenmill.schedule.matcher import Constraint
from tokenmill.settings.sampling_params import SamplingParams

MAX_WAIT = 16
"""The mark waits at most so many tokens where a grammar does not admit it, in the midst of a character."""


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """A limit on the tokens that a model thinks for: where it is reached, the closing mark must come next.

    It depends on the tokens of the output alone, so a drafted position is judged as any other. At most `budget` tokens
    come between two marks, which are given as token ids. is_open: the prompt has the first mark.

    Only a text that begins with the first mark, or whose prompt has it, thinks. is_closed: says whether the second mark
    is among some tokens, however it is spelled.
    """

    budget: int
    opening: tuple[int, ...]
    closing: tuple[int, ...]
    is_open: bool = False
    is_closed: Callable[[Sequence[int]], bool] = field(default=lambda _: False, compare=False, repr=False)

    @property
    def num_concerned(self) -> int:
        """Count the tokens of output that the limit is about; tokens after them are free."""
        return self._end + len(self.closing) + MAX_WAIT

    @property
    def _end(self) -> int:
        return self.budget + (0 if self.is_open else len(self.opening))

    def concerns(self, first: int, last: int) -> bool:
        """Say whether a token may be forced after so many tokens of output, from `first` to before `last`."""
        return first < self.num_concerned and self._end < last

    def forced(self, output: Sequence[int]) -> int | None:
        """Find the token of the closing mark that must come after these tokens, if there is one."""
        if not self.concerns(len(output), len(output) + 1):
            return None
        first = self._end - self.budget
        if tuple(output[:first]) != self.opening[:first]:
            return None
        thought, size = tuple(output[first:]), len(self.closing)
        if any(thought[at : at + size] == self.closing for at in range(len(thought))) or self.is_closed(thought):
            return None
        begun = next(n for n in range(size - 1, -1, -1) if thought[len(thought) - n :] == self.closing[:n])
        return self.closing[begun]


@dataclass(frozen=True, slots=True)
class Choosing:
    """All that decides the next token of a sequence, handed on whole to sessions, forks, drafts and the sampler's rows.

    stop_ids: token id → the finish reason it gives. penalties_from: the position from which presence and frequency
    penalties count; the default is the end of the prompt. bad_words: token ids of each word, whose last must not follow
    the others. dry_breakers: of text/breakers.py. constraint: the tokens from constrained_from on fit it; the
    default position is the end of the prompt. thinking: the limit on thinking, from the same position on. offset: the
    position of the first token in the text whose random numbers it has. is_constrained: a mask depends on the tokens
    before a choice.
    """

    params: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    stop_ids: Mapping[int, str] = field(default_factory=dict)
    penalties_from: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    dry_breakers: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    constraint: Constraint | None = None
    thinking: ThinkingBudget | None = None
    constrained_from: int | None = None
    offset: int = 0
    is_constrained: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_constrained", self.constraint is not None or self.thinking is not None)
