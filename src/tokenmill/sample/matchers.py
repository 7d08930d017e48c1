"""The matchers of constrained sequences: drafts that fit, forced tokens as drafts, the masks of a step, and where a
text has ended by its grammar.

A sequence's matcher is a function of its tokens: after a change of them (a preemption, a rewind, an edit, a resumed
request), `_follow` goes on from the beginning that is still the same. Nothing else moves a matcher.
"""

from collections.abc import Sequence as List
from dataclasses import dataclass
from weakref import WeakKeyDictionary, WeakSet

import numpy as np

from tokenmill.errors import RequestError
from tokenmill.sample.masks import MaskTable
from tokenmill.sample.state import Mask
from tokenmill.schedule.choosing import Choosing
from tokenmill.schedule.matcher import MaskRows, Matcher, Words
from tokenmill.schedule.sequence import UNKNOWN, WHOLE, Plan, Sequence, Work


@dataclass(slots=True)
class _Followed:
    """The matcher of a sequence with these settings, whose constraint begins at `start`. It has followed the first
    num_known of these tokens, and perhaps tokens accepted since.
    """

    matcher: Matcher
    choosing: Choosing
    tokens: list[int]
    start: int
    num_known: int


class Matchers:
    """The matchers, one for each sequence with a grammar. The demands of a limit on thinking are made from the tokens
    each time.

    certain: sequence id → the tokens that alone may come, in the step that is made.
    """

    def __init__(self) -> None:
        self._followed: WeakKeyDictionary[Sequence, _Followed] = WeakKeyDictionary()
        self.certain: dict[int, tuple[int, ...]] = {}
        self._without_end: WeakSet[Sequence] = WeakSet()  # sequences whose grammar has no end token
        # A step may begin before the previous one is read, so two tables take turns.
        self._table: MaskTable | None = None
        self._other_table: MaskTable | None = None

    def forced(self, sequence: Sequence, limit: int) -> list[int]:
        """Find at most `limit` tokens that the grammar of a sequence demands next."""
        matcher = self._follow(sequence) if limit > 0 and _may_be_drafted(sequence) else None
        if matcher is None:
            return []
        tokens, num_certain = matcher.forced(limit)
        if num_certain and _takes_any(sequence.choosing):
            self.certain[sequence.id] = tuple(tokens[:num_certain])
        return tokens

    def leave_out_certain(self, plan: Plan) -> None:
        """Want no logits where one token alone may come, as `forced` has found in this step."""
        for index, work in enumerate(plan.work):
            certain = self.certain.get(work.sequence.id, ())
            if work.drafts and work.drafts[: len(certain)] == certain[: len(work.drafts)]:
                count = min(len(certain), len(work.drafts))
                plan.work[index] = work._replace(num_logits=work.num_logits - count, num_certain=count)
        self.certain.clear()

    def drafts(self, sequence: Sequence, guessed: list[int], forced: List[int], limit: int) -> list[int]:
        """Make the drafts of a sequence: forced tokens, or guesses up to the first token that does not fit."""
        choosing, length = sequence.choosing, _num_constrained(sequence)
        thinks = choosing.thinking is not None and choosing.thinking.concerns(length, length + limit + 1)
        if choosing.constraint is None and not thinks:
            return guessed
        if not _may_be_drafted(sequence):
            return []
        fitting = guessed if guessed[:1] != [UNKNOWN] and guessed[: len(forced)] == forced else list(forced)
        if len(fitting) > len(forced) and (matcher := self._follow(sequence)) is not None:
            fitting = fitting[: matcher.num_fitting(fitting)]
        return _with_marks(sequence, fitting, limit)

    def masks(self, plan: Plan) -> dict[int, list[Mask]]:
        """Fill the masks of each constrained sequence's rows, by its id. They hold until the call after the next."""
        constrained = (each for each in plan.work if each.sequence.choosing.is_constrained)
        works = [each for each in constrained if each.num_logits > 0 and each.sequence.score_from is None]
        self._table, self._other_table = self._other_table, self._table
        masks: dict[int, list[Mask]] = {}
        table, num_filled = None, 0
        for work in works:
            sequence, count = work.sequence, 1 + len(work.verified)
            matcher = self._follow(sequence)
            if matcher is None:
                found: list[Mask] = [None] * count
            else:
                table = table or self._room(works, matcher.num_words)
                found = _filled(work, matcher, table.rows(num_filled, count))
                num_filled += count
            if sequence.choosing.thinking is not None:
                _force_marks(sequence, work.verified, found)
            masks[sequence.id] = found
        return masks

    def _room(self, works: List[Work], num_words: int) -> MaskTable:
        num_rows = sum(len(each.verified) + 1 for each in works)
        if self._table is None or len(self._table) < num_rows:
            self._table = MaskTable(num_rows, num_words)
        return self._table

    def settle(self, plan: Plan, accepted: List[list[int]]) -> list[list[int]]:
        """Leave out tokens that were accepted after the end of a grammar. The first token stays: its row was masked."""
        kept = []
        for work, tokens in zip(plan.work, accepted, strict=True):
            count = len(tokens)
            if count > 1 and (matcher := self._follow(work.sequence, tokens)) is not None:
                count = max(len(matcher.tokens) - _num_constrained(work.sequence), 1)
            kept.append(tokens[:count])
        return kept

    def whole(self, plan: Plan, accepted: List[list[int]]) -> list[Sequence]:
        """List the sequences that have got tokens and end by their grammar, although no end token ends them."""
        if not self._without_end:
            return []
        grown = [work.sequence for work, tokens in zip(plan.work, accepted, strict=True) if tokens]
        return [each for each in grown if each.finish_reason is None and self._is_whole(each)]

    def _is_whole(self, sequence: Sequence) -> bool:
        if sequence not in self._without_end:  # otherwise an end token ends it
            return False
        matcher = self._follow(sequence)
        return matcher is not None and is_whole(sequence, matcher)

    def _begun(self, sequence: Sequence) -> _Followed:
        matcher, start = matcher_of(sequence.choosing), constrained_start(sequence)
        assert matcher is not None, "its constraint has a matcher"
        (self._without_end.discard if matcher.ends else self._without_end.add)(sequence)
        self._followed[sequence] = begun = _Followed(matcher, sequence.choosing, sequence.tokens, start, start)
        return begun

    def _follow(self, sequence: Sequence, more: List[int] = ()) -> Matcher | None:
        """Bring the matcher of a sequence with a grammar into the state after its tokens and `more`."""
        if sequence.choosing.constraint is None:
            return None
        known, tokens = self._followed.get(sequence), sequence.tokens
        if known is None or known.choosing is not sequence.choosing:
            known = self._begun(sequence)
        # Mostly it goes on from where it was left. A list of tokens that has only grown is not read from its beginning:
        # nothing of it is in the processor's caches after a pass over the weights.
        if known.tokens is not tokens:
            known.tokens, known.start = tokens, constrained_start(sequence)
            known.num_known = known.start
        matcher, start, num_known = known.matcher, known.start, min(known.num_known, len(tokens))
        known.num_known = len(tokens)
        place = start + len(matcher.tokens)  # the matcher's place, if its last tokens are the sequence's
        if num_known <= place <= len(tokens) and matcher.tokens[num_known - start :] == tokens[num_known:place]:
            new = [*tokens[place:], *more] if more else tokens[place:]
            if not new or matcher.accept(new) == len(new):
                return matcher
        matcher.follow([*tokens[start:], *more])
        return matcher


def matcher_of(choosing: Choosing) -> Matcher | None:
    """Make a matcher of a constraint, at the beginning of the text; None without a constraint."""
    return None if choosing.constraint is None else choosing.constraint.matcher(choosing.stop_ids)


def is_whole(sequence: Sequence, matcher: Matcher) -> bool:
    """Say whether nothing may follow a sequence's tokens, which its matcher has followed, without an end token."""
    num_generated = len(sequence.tokens) - sequence.num_prompt_tokens
    is_possible = num_generated >= sequence.choosing.params.min_new_tokens and not matcher.ends
    return is_possible and matcher.has_ended


def check_resumed(sequence: Sequence) -> None:
    """Check that the tokens of a resumed request fit its constraint, and end the sequence if nothing may follow."""
    if (matcher := matcher_of(sequence.choosing)) is None:
        return
    start = constrained_start(sequence)
    given, num_before = sequence.tokens[start:], sequence.num_prompt_tokens - start
    if (num_fitting := matcher.follow(given)) < len(given):
        place = f"token {num_fitting + 1 - num_before} of {len(given) - num_before}"
        raise RequestError(f"emitted: {place} does not fit the constraint of this request", "emitted")
    if sequence.end_reason is None and is_whole(sequence, matcher):
        sequence.finish_reason = WHOLE


def constrained_start(sequence: Sequence) -> int:
    """Find the beginning of the text that the constraint of a sequence is about."""
    start = sequence.choosing.constrained_from
    return sequence.num_prompt_tokens if start is None else start


def _num_constrained(sequence: Sequence) -> int:
    return len(sequence.tokens) - constrained_start(sequence)


def _may_be_drafted(sequence: Sequence) -> bool:
    return sequence.num_pending_tokens == 1 and not sequence.has_unread_token and sequence.score_from is None


def _takes_any(choosing: Choosing) -> bool:
    """Say whether a token that alone fits is chosen in any case, and nothing is reported of its logits."""
    params = choosing.params
    is_limited = params.changes_logits or params.min_new_tokens > 0 or choosing.bad_words
    return choosing.thinking is None and params.logprobs is None and not is_limited


def _filled(work: Work, matcher: Matcher, rows: MaskRows) -> list[Mask]:
    """Have a matcher fill the masks. A row after an end does not count, and admits every token."""
    number = len(matcher.tokens)
    if number < _num_constrained(work.sequence):  # a limit, or a fault of ours: no row goes unmasked
        message = f"token {number + 1} of the text so far does not fit the constraint of this request"
        return [matcher.error or RequestError(message)] * len(rows.words)
    errors = matcher.masks(rows, [*work.certain, *work.verified], work.num_certain)
    if not any(errors):
        return list(rows.words)
    return [words_W if error is None else error for words_W, error in zip(rows.words, errors, strict=True)]


def _force_marks(sequence: Sequence, drafts: List[int], masks: list[Mask]) -> None:
    """Admit the token of the closing mark alone, where the mark of a thought has to come."""
    thinking, length = sequence.choosing.thinking, _num_constrained(sequence)
    if thinking is None or not thinking.concerns(length, length + len(masks)):
        return
    output = sequence.tokens[constrained_start(sequence) :]
    for number, mask in enumerate(masks):
        token = thinking.forced([*output, *drafts[:number]])
        if token is not None and not isinstance(mask, RequestError):
            only_W = _only(token, mask)
            masks[number] = only_W if only_W.any() else mask  # empty: the grammar has found the thought closed


def _only(token: int, mask: Words | None) -> Words:
    words_W = np.zeros(token // 32 + 1, dtype=np.int32)
    words_W.view(np.uint32)[-1] = 1 << token % 32
    if mask is not None:
        words_W &= mask[: len(words_W)]
    return words_W


def _with_marks(sequence: Sequence, fitting: list[int], limit: int) -> list[int]:
    """Put the tokens of a closing mark into the drafts where it has to come."""
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
