"""A constraint on texts, and the matcher of one text: which tokens may come next, and whether the text may end.

A matcher is a function of its tokens: `follow` brings it from any text to any other, by the beginning that both have.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from tokenmill.constrain.room import with_room
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import RequestError
from tokenmill.sample.masks import admits, forbid
from tokenmill.schedule.matcher import ForcedTokens, MaskRows, Words

MAX_RENEWED = 8
"""So often a grammar may be compiled again for one text."""
MAX_RENEWED_SIZE, MAX_RENEWED_S = 64 * 1024, 0.3
"""Characters of a grammar that is compiled again in a step of the engine, and seconds of a processor that it took."""
MAX_FORCED = 16 * 1024
"""Forced bytes at one place. Filling each mask among them takes a time that grows with their number."""


class TooMuchForced(RequestError):
    """A constraint forces more bytes at one place than it may. Compiling it again would change nothing."""


@dataclass(unsafe_hash=True)
class CompiledGrammar:
    """A grammar that is compiled for a vocabulary; see compile.py. Two of the same grammar are equal, whatever `first`
    and `is_spent` are, which change.

    first: a matcher at the beginning of a text, which is copied and never advanced. Copies share what they find out
    about the grammar's words, and the limit of how much that may be; a copy that reaches a limit is made anew without
    it, or, where that takes long, `is_spent`, so that later texts get a constraint of their own. is_forcing: llguidance
    looks for bytes that must come. took_s: seconds of a processor for which it was compiled. warnings: what it says
    without effect.
    """

    grammar: str
    first: LLMatcher = field(compare=False, repr=False)
    vocabulary: Vocabulary = field(compare=False, repr=False)
    limits: LLParserLimits | None = field(default=None, compare=False, repr=False)
    is_spent: bool = field(default=False, compare=False, repr=False)
    is_forcing: bool = True
    took_s: float = field(default=0.0, compare=False, repr=False)
    warnings: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def matcher(self, stop_ids: Container[int] | None = None) -> "GrammarMatcher":
        """Make the matcher of a text without tokens. stop_ids: the tokens that end it, if not all ends of the model."""
        ends = self.vocabulary.ends
        known = ends if stop_ids is None else tuple(each for each in ends if each in stop_ids)
        return GrammarMatcher(self, self.first.deep_copy(), known)

    def renew(self) -> LLMatcher:
        """Compile the grammar again, so that neither this text nor later ones share with earlier ones."""
        self.first = self._compiled()
        return self.first.deep_copy()

    def apart(self) -> "CompiledGrammar":
        """Make another of the same grammar, which shares nothing with this one."""
        return replace(self, first=self._compiled(), is_spent=False)

    def may_renew(self) -> bool:
        """Return whether the grammar is compiled again in no time. Otherwise it counts as spent from now on."""
        if len(self.grammar) > MAX_RENEWED_SIZE or self.took_s > MAX_RENEWED_S:
            self.is_spent = True
        return not self.is_spent

    def _compiled(self) -> LLMatcher:
        return with_room(lambda: LLMatcher(self.vocabulary.tokens, self.grammar, log_level=0, limits=self.limits))


def check_forced(compiled: LLMatcher) -> None:
    """Raise TooMuchForced where more must come than may."""
    if (size := len(compiled.compute_ff_bytes())) > MAX_FORCED:
        raise TooMuchForced(
            f"the constraint of this request demands {size:,} bytes at one place; {MAX_FORCED:,} are possible"
        )


class GrammarMatcher:
    """The state of a constraint after some tokens. tokens: all that it accepted. ends: the tokens that end the text."""

    def __init__(self, constraint: CompiledGrammar, compiled: LLMatcher, ends: tuple[int, ...]) -> None:
        self.constraint, self.compiled, self.ends = constraint, compiled, ends
        self.tokens: list[int] = []
        self._model_ends = constraint.vocabulary.ends
        self._absent = [each for each in constraint.vocabulary.ends if each not in ends]
        self._is_short = False  # it could not be made anew
        self._num_renewed = 0
        self.is_over = False  # the last token is an end, which is kept from llguidance: it cannot go back behind one

    @property
    def num_words(self) -> int:
        """Words of 32 bits in the mask of one position."""
        return self.constraint.vocabulary.words

    def follow(self, tokens: Sequence[int]) -> int:
        """Go to the state after these tokens, or as many as fit; return their number."""
        if self.tokens == tokens and not self._is_short:
            return len(self.tokens)
        self._is_short, alike = False, _num_alike(self.tokens, tokens)
        self.rollback(len(self.tokens) - alike)
        self.accept(tokens[len(self.tokens) :])
        if len(self.tokens) < len(tokens) and self._is_used_up() and self._may_renew():
            self.renew()
            self.accept(tokens[len(self.tokens) :])
        self._is_short |= len(self.tokens) < len(tokens) and self._is_used_up()
        return len(self.tokens)

    def accept(self, tokens: Sequence[int]) -> int:
        """Go on by these tokens, or as many as fit; return their number."""
        if self.is_over:
            return 0
        text, end = self._until_end(tokens)
        accepted = self.compiled.try_consume_tokens(text) if text else 0  # type: ignore[arg-type]  # it takes tuples
        self.tokens += text[:accepted]
        if end and accepted == len(text) and self._may_end_by(end[0]):
            self.tokens += end
            self.is_over = True
            accepted += 1
        return accepted

    def rollback(self, count: int) -> None:
        """Go back by so many tokens, or by more where a limit has been reached since."""
        if not count:
            return
        del self.tokens[len(self.tokens) - count :]
        count -= self.is_over
        self.is_over = False
        if count and not self.compiled.rollback(count):  # llguidance cannot where a grammar counts tokens
            tokens, self.tokens, self.compiled = self.tokens, [], self.constraint.first.deep_copy()
            self.accept(tokens)

    def num_fitting(self, tokens: Sequence[int]) -> int:
        """Count how many of these tokens could come next, one after the other."""
        return self.fork().accept(tokens)

    def mask(self, words_W: Words) -> None:
        """Fill the mask of the next position. RequestError if the grammar takes more than its limits allow."""
        (error,) = self.masks(MaskRows([words_W], words_W.ctypes.data))
        if error is not None:
            raise error

    def masks(self, rows: MaskRows, drafts: Sequence[int] = (), first: int = 0) -> list[RequestError | None]:
        """Fill the masks of the position after the first drafts, and after each of the other drafts. Return for each
        row the error, if the grammar takes more than its limits allow.

        Rows behind an end, or behind a draft that does not fit, get all bits. They do not count: nothing that is chosen
        there fits.
        """
        errors = self._fill(rows, drafts, first)
        # Others may have used up what they share.
        if errors[-1] is not None and not isinstance(errors[-1], TooMuchForced) and self._may_renew():
            self.renew()
            errors = self._fill(rows, drafts, first)
        return errors

    def forced(self, limit: int) -> ForcedTokens:
        """Find at most `limit` tokens that must come next."""
        tokens = list[int]()
        if self.is_over or limit < 1 or not self.constraint.is_forcing:
            return ForcedTokens([], 0)
        ahead = self.compiled
        while len(tokens) < limit and 0 < len(ahead.compute_ff_bytes()) <= MAX_FORCED:
            # The first of these is all that a mask admits here: llguidance looks for it before anything else.
            (*found,) = ahead.compute_ff_tokens()[:1]
            if not found or found[0] in self._model_ends:
                break
            ahead = ahead.deep_copy() if ahead is self.compiled else ahead
            if ahead.try_consume_tokens(found) < 1:
                break
            tokens += found
        ends = self.ends[:1] if len(tokens) < limit and ahead.is_accepting() and ahead.is_stopped() else ()
        return ForcedTokens([*tokens, *ends], len(tokens))

    @property
    def may_end(self) -> bool:
        """Return whether the text so far is whole."""
        return self.is_over or bool(self.compiled.is_accepting())

    @property
    def has_ended(self) -> bool:
        """Return whether the text so far is whole, and nothing may follow but its end."""
        return self.is_over or (self.may_end and (bool(self.compiled.is_stopped()) or self._admits_only_ends()))

    def _admits_only_ends(self) -> bool:
        """Return whether the mask has only ends: a grammar may find out late that nothing can follow."""
        words_W = np.zeros(self.constraint.vocabulary.words, dtype=np.int32)
        self.compiled.unsafe_compute_mask_ptr(words_W.ctypes.data, words_W.nbytes)
        forbid(self.constraint.vocabulary.ends, words_W)
        return not words_W.any()

    def _fill(self, rows: MaskRows, drafts: Sequence[int], first: int) -> list[RequestError | None]:
        if not drafts:
            return [self._fill_next(rows.words[0], rows.address)]
        for words_W in rows.words:
            words_W.fill(-1)
        ahead, errors, size = self.fork(), list[RequestError | None](), rows.words[0].nbytes
        for number, words_W in enumerate(rows.words):
            new = drafts[first + number - 1 : first + number] if number else drafts[:first]
            fits = ahead.accept(new) == len(new)
            ahead._is_short |= not fits and ahead._is_used_up()
            is_last = not fits or (number > 0 and ahead.is_over)
            errors.append(
                ahead.error if is_last else ahead._fill_next(words_W, rows.address + number * size, number > 0)
            )
            if is_last or ahead.is_over or errors[-1] is not None:
                break
        return errors + errors[-1:] * (len(rows.words) - len(errors))

    def _fill_next(self, words_W: Words, address: int, is_drafted: bool = False) -> RequestError | None:
        """Fill the mask of the next position, which lies at an address."""
        if self.is_over:
            words_W.fill(0)
            return self.error
        try:
            if self.constraint.is_forcing:
                check_forced(self.compiled)
        except TooMuchForced as error:
            return error
        # One by one: llguidance's own threads would have to be woken, which takes longer than some masks.
        self.compiled.unsafe_compute_mask_ptr(address, words_W.nbytes)
        if not (self.constraint.is_forcing or self.compiled.is_accepting()):  # here an end may be of a rule alone
            admitted = [each for each in self._model_ends if admits(each, words_W)]
            forbid([each for each in admitted if not self._may_end_by(each)], words_W)
        if self._absent:
            self._remove_absent(words_W, is_drafted)
        return self.error

    def _may_end_by(self, end: int) -> bool:
        """Return whether the text is whole, or becomes so by this end, which its grammar names."""
        if self.constraint.is_forcing or self.compiled.is_accepting():
            return bool(self.compiled.is_accepting())
        ahead = self.compiled.deep_copy()
        return bool(ahead.consume_token(end) and ahead.is_accepting())

    def _remove_absent(self, words_W: Words, is_drafted: bool) -> None:
        """Forbid ends of the model that do not end this text. Behind a draft that nothing follows, nothing counts."""
        could_end = is_drafted and words_W.any()
        forbid(self._absent, words_W)
        if could_end and not words_W.any():
            words_W[:] = -1

    def fork(self) -> "GrammarMatcher":
        """Make another matcher in the same state."""
        other = GrammarMatcher(self.constraint, self.compiled.deep_copy(), self.ends)
        other.tokens, other.is_over, other._is_short = list(self.tokens), self.is_over, self._is_short
        return other

    def renew(self) -> None:
        """Come to the same state without what was shared with other texts."""
        tokens, self.tokens, self.is_over = self.tokens, [], False
        self._num_renewed += 1
        self.compiled = self.constraint.renew()
        self._is_short = self.accept(tokens) < len(tokens)

    def _may_renew(self) -> bool:
        return self._num_renewed < MAX_RENEWED and self.constraint.may_renew()

    def _is_used_up(self) -> bool:
        """Return whether the grammar has reached a limit: llguidance tells it of no token that does not fit by that."""
        if self.is_over or self.compiled.is_error():
            return not self.is_over
        ahead = self.compiled.deep_copy()
        ahead.compute_bitmask()
        return bool(ahead.is_error())

    @property
    def error(self) -> RequestError | None:
        """The error of a grammar that has reached a limit, after which it admits nothing; None before that."""
        if not (self.compiled.is_error() or self._is_short):
            return None
        why = " ".join(str(self.compiled.get_error()).split("\n<")[0].split())
        what = "is one at which llguidance fails" if why.startswith("panic") else "takes more than is allowed"
        place = f"at token {len(self.tokens) + 1} of the text"
        return RequestError(f"the constraint of this request {what}, {place}{': ' * bool(why)}{why}")

    def _until_end(self, tokens: Sequence[int]) -> tuple[Sequence[int], list[int]]:
        """Return the tokens before the first end of the model, and that end if it ends this text."""
        for place, token in enumerate(tokens):
            if token in self._model_ends:
                return tokens[:place], [token] if token in self.ends else []
        return tokens, []


def _num_alike(ours: list[int], theirs: Sequence[int]) -> int:
    """Count the tokens at the beginning that both have."""
    shorter = min(len(ours), len(theirs))
    if ours[:shorter] == list(theirs[:shorter]):
        return shorter
    return next(at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
