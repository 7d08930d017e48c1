"""The state of sampling: one Row for each token to be chosen, with all that the choice depends on beside the logits.

`choice_kind` is the one place that says whether a token can be known before it is sampled.
"""

from collections.abc import Iterator
from collections.abc import Sequence as List
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokenmill.errors import RequestError
from tokenmill.sample.counts import TokenCounts, counts_of
from tokenmill.sample.noise import uniform
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import Sequence, Work
from tokenmill.settings.sampling_params import SamplingParams


class ChoiceKind(Enum):
    """LARGEST: the largest of the model's logits and nothing else, so a program can find it by itself. LOGITS: a
    function of the logits and the position alone. HISTORY: it also needs the values of the tokens before it.
    """

    LARGEST = 0
    LOGITS = 1
    HISTORY = 2


Mask = NDArray[np.int32] | RequestError | None
"""The tokens that a row's constraint admits: bit i of word w is token 32 w + i; tokens beyond the last word are not
admitted. An error says why there is no mask; None admits every token."""


def choice_kind(choosing: Choosing, num_generated: int) -> ChoiceKind:
    """Find the kind of choice of the token after num_generated others, and of every later one."""
    params, thinking = choosing.params, choosing.thinking
    thinks = thinking is not None and num_generated < thinking.num_concerned
    if choosing.constraint is not None or thinks or params.looks_back:
        return ChoiceKind.HISTORY
    is_masked = num_generated < params.min_new_tokens  # end tokens are forbidden
    is_plain = params.temperature == 0 and not params.changes_logits and not is_masked
    return ChoiceKind.LARGEST if is_plain else ChoiceKind.LOGITS


class Row(NamedTuple):
    """One row of logits whose token is to be chosen.

    position: index that the chosen token will have in its sequence. tokens: all tokens before it (prompt, output,
    drafts), or the sequence's own alone where the choice does not look back. mask: of the choosing's constraint.
    sequence: the text of the row; its token counts are kept from step to step. None: the tokens are counted anew.
    """

    choosing: Choosing
    position: int
    tokens: List[int]
    num_prompt_tokens: int
    mask: Mask = None
    sequence: Sequence | None = None

    @property
    def params(self) -> SamplingParams:
        return self.choosing.params

    @property
    def noise(self) -> float:
        """Compute the random number of the choice."""
        return uniform(self.choosing.seed, self.choosing.offset + self.position)

    @property
    def chance(self) -> float:
        """Compute a second random number, for whether XTC drops tokens: from positions behind all of a text's own."""
        return uniform(self.choosing.seed, self.choosing.offset + self.position + (1 << 31))

    @property
    def kind(self) -> ChoiceKind:
        return choice_kind(self.choosing, self.position - self.num_prompt_tokens)

    @property
    def words(self) -> NDArray[np.int32] | None:
        """Return the mask. RequestError if the constraint could make no mask."""
        if isinstance(self.mask, RequestError):
            raise RequestError(str(self.mask))
        return self.mask

    @property
    def output_start(self) -> int:
        """Find the place from which tokens count as generated."""
        start = self.choosing.penalties_from
        return self.num_prompt_tokens if start is None else start

    def occurring(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Find the tokens that occur from place `start` on, and how often: see TokenCounts."""
        counts = TokenCounts(self.tokens, start) if self.sequence is None else counts_of(self.sequence, start)
        return counts.beside(self.tokens[len(counts.tokens) :])

    @property
    def forbidden_ids(self) -> tuple[int, ...]:
        """List the tokens that would end the text too early or complete a bad word."""
        is_short = self.position - self.num_prompt_tokens < self.params.min_new_tokens
        masked = tuple(self.choosing.stop_ids) if is_short else ()
        return (*masked, *self._completing()) if self.choosing.bad_words else masked

    def _completing(self) -> Iterator[int]:
        output = tuple(self.tokens[self.output_start :])
        for *beginning, last in self.choosing.bad_words:
            start = len(output) - len(beginning)
            if start >= 0 and output[start:] == tuple(beginning):
                yield last


def rows_of(work: Work, masks: List[Mask] = ()) -> Iterator[Row]:
    """Yield the rows of a work item's logits: for the token after the sequence's own and the certain drafts, and for
    the token after each verified draft. masks: of these rows, if the sequence is constrained.
    """
    sequence, first = work.sequence, work.num_certain
    choosing, own = sequence.choosing, sequence.tokens
    for count in range(first, first + len(work.verified) + 1):
        tokens = [*own, *work.drafts[:count]] if count and choosing.params.looks_back else own
        mask = masks[count - first] if masks else None
        yield Row(choosing, len(own) + count, tokens, sequence.num_prompt_tokens, mask, sequence)
