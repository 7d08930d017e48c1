"""The matchers of constrained sequences: drafts that fit, forced tokens as drafts, the masks of a step, and where a
text has ended by its grammar.

A sequence's matcher is a function of its tokens: whatever became of these (a preemption, a rewind, an edit, a resumed
request), `_follow` goes on from the beginning that is still the same. Nothing else moves a matcher.
"""

from collections.abc import Sequence as List
from weakref import WeakKeyDictionary

import numpy as np

from tokenmill.constrain.constraint import Matcher
from tokenmill.constrain.masks import MaskRows, MaskTable, Words
from tokenmill.errors import RequestError
from tokenmill.sample.state import Mask
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.sequence import UNKNOWN, Plan, Sequence, Work


class Matchers:
    """One for each sequence with a grammar. What a limit of thinking demands is made from the tokens each time."""

    def __init__(self) -> None:
        self._matchers: WeakKeyDictionary[Sequence, tuple[Matcher, Choosing]] = WeakKeyDictionary()

    def drafts(self, sequence: Sequence, guessed: list[int], limit: int) -> list[int]:
        """The drafts of a sequence: forced tokens, or what was guessed up to the first token that does not fit."""
        choosing, length = sequence.choosing, _num_constrained(sequence)
        thinks = choosing.thinking is not None and choosing.thinking.concerns(length, length + limit + 1)
        if choosing.constraint is None and not thinks:
            return guessed
        if sequence.num_pending_tokens != 1 or sequence.has_unread_token or sequence.score_from is not None:
            return []
        fitting = guessed if guessed[:1] != [UNKNOWN] else []
        if (matcher := self._follow(sequence)) is not None:
            forced = matcher.forced()[: max(limit, 0)]
            is_guessed = fitting[: len(forced)] == forced
            fitting = fitting[: matcher.num_fitting(fitting)] if is_guessed else forced
        return _with_marks(sequence, fitting, limit)

    def masks(self, plan: Plan) -> dict[int, list[Mask]]:
        """The masks of the rows of each constrained sequence, by its id."""
        works = [each for each in plan.work if each.sequence.choosing.is_constrained and _is_sampled(each)]
        masks: dict[int, list[Mask]] = {}
        table, num_filled = None, 0
        for work in works:
            sequence, drafts = work.sequence, work.drafts[: work.num_logits - 1]
            matcher, count = self._follow(sequence), 1 + len(drafts)
            if matcher is None:
                found: list[Mask] = [None] * count
            else:  # one table for all: what is done once for each sequence is dear beside a mask
                table = table or MaskTable(sum(len(each.drafts) + 1 for each in works), matcher.constraint.vocabulary)
                found = _filled(sequence, matcher, drafts, table.rows(num_filled, count))
                num_filled += count
            if sequence.choosing.thinking is not None:
                _force_marks(sequence, drafts, found)
            masks[sequence.id] = found
        return masks

    def settle(self, plan: Plan, accepted: List[list[int]]) -> list[list[int]]:
        """Leave out what was accepted behind the end of a grammar. The first token stays: its row was masked."""
        kept = []
        for work, tokens in zip(plan.work, accepted, strict=True):
            count = len(tokens)
            if count and (matcher := self._follow(work.sequence, tokens)) is not None:
                count = max(len(matcher.tokens) - _num_constrained(work.sequence), 1)
            kept.append(tokens[:count])
        return kept

    def whole(self, plan: Plan, accepted: List[list[int]]) -> list[Sequence]:
        """The sequences that have got tokens and end by their grammar, although none of their tokens ends them."""
        grown = [work.sequence for work, tokens in zip(plan.work, accepted, strict=True) if tokens]
        return [each for each in grown if each.finish_reason is None and self._is_whole(each)]

    def _is_whole(self, sequence: Sequence) -> bool:
        known, _ = self._matchers.get(sequence, (None, None))
        if known is None or known.ends:  # else a token says so
            return False
        matcher = self._follow(sequence)
        return matcher is not None and is_whole(sequence, matcher)

    def _follow(self, sequence: Sequence, more: List[int] = ()) -> Matcher | None:
        """The matcher of a sequence with a grammar, in the state after its tokens and `more`."""
        if sequence.choosing.constraint is None:
            return None
        matcher, given = self._matchers.get(sequence, (None, None))
        if given is not sequence.choosing and (matcher := matcher_of(sequence.choosing)) is not None:
            self._matchers[sequence] = matcher, sequence.choosing
        assert matcher is not None, "its constraint has one"
        tokens = sequence.tokens[constrained_start(sequence) :]
        # Mostly it is where it was left: then what `more` costs does not grow with the text.
        if matcher.tokens != tokens or not more or matcher.accept(more) < len(more):
            matcher.follow([*tokens, *more])
        return matcher


def matcher_of(choosing: Choosing) -> Matcher | None:
    """Make a matcher of a constraint, at the beginning of the text; None without one."""
    return None if choosing.constraint is None else choosing.constraint.matcher(choosing.stop_ids)


def is_whole(sequence: Sequence, matcher: Matcher) -> bool:
    """Whether nothing may follow the tokens of a sequence, which its matcher has followed, though none is an end."""
    num_generated = len(sequence.tokens) - sequence.num_prompt_tokens
    return num_generated >= sequence.choosing.params.min_new_tokens and matcher.is_whole


def constrained_start(sequence: Sequence) -> int:
    """Where the text begins that the constraint of a sequence is about."""
    start = sequence.choosing.constrained_from
    return sequence.num_prompt_tokens if start is None else start


def _num_constrained(sequence: Sequence) -> int:
    return len(sequence.tokens) - constrained_start(sequence)


def _is_sampled(work: Work) -> bool:
    return work.num_logits > 0 and work.sequence.score_from is None


def _filled(sequence: Sequence, matcher: Matcher, drafts: List[int], rows: MaskRows) -> list[Mask]:
    """The masks that a matcher gives. A row behind an end does not count, and admits every token."""
    number = len(matcher.tokens)
    if number < _num_constrained(sequence):  # a fault of ours: no row goes unmasked
        message = f"token {number + 1} of the text so far does not fit the constraint of this request"
        return [RequestError(message)] * (1 + len(drafts))
    errors = matcher.masks(rows, drafts)
    if not any(errors):
        return list(rows.words_RW)
    return [words_W if error is None else error for words_W, error in zip(rows.words_RW, errors, strict=True)]


def _force_marks(sequence: Sequence, drafts: List[int], masks: list[Mask]) -> None:
    """Where the closing mark of a thought has to come, admit its token alone."""
    thinking, length = sequence.choosing.thinking, _num_constrained(sequence)
    if thinking is None or not thinking.concerns(length, length + len(masks)):
        return
    output = sequence.tokens[constrained_start(sequence) :]
    for number, mask in enumerate(masks):
        token = thinking.forced([*output, *drafts[:number]])
        if token is not None and not isinstance(mask, RequestError):
            only_W = _only(token, mask)
            masks[number] = only_W if only_W.any() else mask  # else the grammar has found the thought closed


def _only(token: int, mask: Words | None) -> Words:
    words_W = np.zeros(token // 32 + 1, dtype=np.int32)
    words_W.view(np.uint32)[-1] = 1 << token % 32
    if mask is not None:
        words_W &= mask[: len(words_W)]
    return words_W


def _with_marks(sequence: Sequence, fitting: list[int], limit: int) -> list[int]:
    """The drafts with the tokens of a closing mark where it has to come."""
    thinking, length = sequence.choosing.thinking, _num_constrained(sequence)
    if thinking is None or not thinking.concerns(length, length + max(len(fitting), limit)):
        return fitting
    output, drafts = sequence.tokens[constrained_start(sequence) :], list[int]()
    while len(drafts) < limit:
        token = thinking.forced([*output, *drafts])
        if token is None and fitting[: len(drafts)] == drafts and len(drafts) < len(fitting):
            token = fitting[len(drafts)]
        if token is None:
            break
        drafts.append(token)
    return drafts
