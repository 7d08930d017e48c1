"""The state of a sequence that the choice of its next token depends on, beside the logits.

`choice_kind` is the one place that says whether a token can be known before it is sampled.
"""

from collections.abc import Iterator
from collections.abc import Sequence as List
from enum import Enum
from typing import NamedTuple

from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.sampling_params import SamplingParams

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
    is_plain = params.temperature == 0 and not params.changes_logits and not is_masked
    return ChoiceKind.LARGEST if is_plain else ChoiceKind.LOGITS


class Row(NamedTuple):
    """One row of logits whose token is to be chosen.

    seed: of the sequence. position: index that the chosen token will have in its sequence. tokens: all before it
    (prompt, output, drafts). masked_ids: end-of-sequence and stop ids, forbidden until min_new_tokens were generated.
    counted_from: where presence and frequency penalties begin to count; None is the end of the prompt.
    bad_words: token ids of each word that the output must not hold.
    """

    params: SamplingParams
    seed: int
    position: int
    tokens: List[int]
    num_prompt_tokens: int
    masked_ids: tuple[int, ...]
    counted_from: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def kind(self) -> ChoiceKind:
        return choice_kind(self.params, self.position - self.num_prompt_tokens)

    @property
    def output(self) -> List[int]:
        """The tokens that count as generated."""
        return self.tokens[self.num_prompt_tokens if self.counted_from is None else self.counted_from :]

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """The tokens that would end the text too early or complete a bad word."""
        is_short = self.position - self.num_prompt_tokens < self.params.min_new_tokens
        masked = self.masked_ids if is_short else ()
        return (*masked, *self._completing()) if self.bad_words else masked

    def _completing(self) -> Iterator[int]:
        output = tuple(self.output)
        for *beginning, last in self.bad_words:
            start = len(output) - len(beginning)
            if start >= 0 and output[start:] == tuple(beginning):
                yield last


class SamplerState:
    """One sequence as its next choice sees it: drafts enter by `accept` and leave by `rollback`. It is not changed."""

    def __init__(self, sequence: Sequence) -> None:
        self._sequence, self._accepted = sequence, list[int]()

    def accept(self, token: int) -> None:
        self._accepted.append(token)

    def rollback(self, count: int) -> None:
        """Remove the last `count` accepted tokens."""
        del self._accepted[len(self._accepted) - count :]

    def row(self) -> Row:
        sequence, params, accepted = self._sequence, self._sequence.params, self._accepted
        position = len(sequence.tokens) + len(accepted)
        tokens = [*sequence.tokens, *accepted] if accepted and params.looks_back else sequence.tokens
        masked_ids = tuple(sequence.stop_ids) if params.min_new_tokens else ()
        start, counted = sequence.num_prompt_tokens, sequence.counted_from
        return Row(params, sequence.seed, position, tokens, start, masked_ids, counted, sequence.bad_words)
