"""The state of a sequence that the choice of its next token depends on, beside the logits.

`choice_kind` is the one place that says whether a token can be known before it is sampled. `SamplerState` is the record
of one sequence: tokens enter it by `accept` and leave it by `rollback`, so that drafts can be tried.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from tokenmill.config import SamplingParams

__all__ = ["ChoiceKind", "Row", "SamplerState", "choice_kind"]


class ChoiceKind(Enum):
    """LARGEST: the largest of the model's logits and nothing else, so a program can find it by itself. LOGITS: a
    function of the logits and the position alone. HISTORY: it also needs the values of the tokens before it."""

    LARGEST = 0
    LOGITS = 1
    HISTORY = 2


def choice_kind(params: SamplingParams, num_generated: int) -> ChoiceKind:
    """How the token after num_generated others, and every later one, is chosen."""
    if params.looks_back:
        return ChoiceKind.HISTORY
    is_masked = num_generated < params.min_new_tokens  # end tokens are forbidden
    return ChoiceKind.LARGEST if params.takes_largest and not is_masked else ChoiceKind.LOGITS


class Row(NamedTuple):
    """One row of logits whose token is to be chosen.

    seed: of the sequence. position: index that the chosen token will have in its sequence. tokens: all before it
    (prompt, output, drafts). masked_ids: end-of-sequence and stop ids, forbidden until min_new_tokens were generated.
    counted_from: where presence and frequency penalties begin to count; None is the end of the prompt.
    """

    params: SamplingParams
    seed: int
    position: int
    tokens: Sequence[int]
    num_prompt_tokens: int
    masked_ids: tuple[int, ...]
    counted_from: int | None = None

    @property
    def kind(self) -> ChoiceKind:
        """See choice_kind."""
        return choice_kind(self.params, self.position - self.num_prompt_tokens)

    @property
    def has_mask(self) -> bool:
        """Whether there are ids that may not be chosen yet."""
        return bool(self.masked_ids) and self.position - self.num_prompt_tokens < self.params.min_new_tokens


class SamplerState:
    """One sequence's settings and tokens, as its next choice sees them. `tokens` is read, never changed."""

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        tokens: Sequence[int],
        num_prompt_tokens: int,
        masked_ids: tuple[int, ...] = (),
        counted_from: int | None = None,
    ) -> None:
        self._params, self._seed, self._tokens = params, seed, tokens
        self._num_prompt_tokens, self._masked_ids, self._counted_from = num_prompt_tokens, masked_ids, counted_from
        self._accepted: list[int] = []

    def accept(self, token: int) -> None:
        """Append a token."""
        self._accepted.append(token)

    def rollback(self, count: int) -> None:
        """Remove the last `count` accepted tokens."""
        del self._accepted[len(self._accepted) - count :]

    def row(self) -> Row:
        """The choice of the next token."""
        position = len(self._tokens) + len(self._accepted)
        tokens = [*self._tokens, *self._accepted] if self._accepted and self._params.looks_back else self._tokens
        start, counted = self._num_prompt_tokens, self._counted_from
        return Row(self._params, self._seed, position, tokens, start, self._masked_ids, counted)
