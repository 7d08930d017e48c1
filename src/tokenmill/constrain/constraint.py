"""A constraint on texts, and the matcher of one text: which tokens may come next, and whether the text may end.

A matcher is a function of its tokens: `follow` brings it from any text to any other, by the beginning that both have.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from tokenmill.constrain.masks import MaskRows, Words, forbid
from tokenmill.constrain.room import with_room
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import RequestError

MAX_RENEWED = 8  # times for one text
MAX_RENEWED_SIZE = 64 * 1024
"""Characters of a grammar that is compiled again in a step of the engine. A longer one may take seconds."""
MAX_FORCED = 16 * 1024
"""Bytes that must come one after the other. Each mask among them takes a time that grows with their number."""


class TooMuchForced(RequestError):
    """More must come at one place than MAX_FORCED. Compiling again would change nothing."""


@dataclass(unsafe_hash=True)
class Constraint:
    """A grammar that is compiled for a vocabulary; see compile.py. Two of the same grammar are equal, whatever `first`
    and `is_spent` are, which change.

    first: a matcher at the beginning of a text, which is copied and never advanced. Copies share what they find out
    about the grammar's words, and the limit of how much that may be; one that reaches a limit is made anew without it,
    or, where that takes long, `is_spent`, so that later texts get a constraint of their own.
    """

    grammar: str
    first: LLMatcher = field(compare=False, repr=False)
    vocabulary: Vocabulary = field(compare=False, repr=False)
    limits: LLParserLimits | None = field(default=None, compare=False, repr=False)
    is_spent: bool = field(default=False, compare=False, repr=False)

    def matcher(self, stop_ids: Container[int] | None = None) -> "Matcher":
        """Make the matcher of a text without tokens. stop_ids: the tokens that end it, where not all of the model's
        ends do.
        """
        ends = self.vocabulary.ends
        known = ends if stop_ids is None else tuple(each for each in ends if each in stop_ids)
        return Matcher(self, self.first.deep_copy(), known)

    def renew(self) -> LLMatcher:
        """Compile the grammar again, so that neither this text nor later ones share with earlier ones."""
        made = self._made()
        self.first = made
        return made.deep_copy()

    def apart(self) -> "Constraint":
        """Make another of the same grammar, which shares nothing with this one."""
        return replace(self, first=self._made(), is_spent=False)

    def may_renew(self) -> bool:
        """Whether the grammar is compiled again in no time. Otherwise it counts as spent from now on."""
        if len(self.grammar) > MAX_RENEWED_SIZE:
            self.is_spent = True
        return not self.is_spent

    def _made(self) -> LLMatcher:
        return with_room(lambda: LLMatcher(self.vocabulary.tokens, self.grammar, log_level=0, limits=self.limits))


def check_forced(compiled: LLMatcher) -> None:
    """TooMuchForced where more must come than may."""
    if (size := len(compiled.compute_ff_bytes())) > MAX_FORCED:
        raise TooMuchForced(
            f"the constraint of this request demands {size:,} bytes at one place; {MAX_FORCED:,} are possible"
        )


class Matcher:
    """The state of a constraint after some tokens. tokens: those that it accepted. ends: those that end the text."""

    def __init__(self, constraint: Constraint, compiled: LLMatcher, ends: tuple[int, ...]) -> None:
        self.constraint, self.compiled, self.ends = constraint, compiled, ends
        self.tokens: list[int] = []
        self._absent = [each for each in constraint.vocabulary.ends if each not in ends]
        self._is_short = False  # it could not be made anew
        self._num_renewed = 0
        self.is_over = False  # the last token is an end, which is kept from llguidance: it cannot go back behind one

    def follow(self, tokens: Sequence[int]) -> int:
        """Go to the state after these tokens, or as many as fit; their number."""
        if self.tokens == tokens and not self._is_short:
            return len(self.tokens)
        self._is_short, alike = False, _num_alike(self.tokens, tokens)
        self.rollback(len(self.tokens) - alike)
        self.accept(tokens[alike:])
        if len(self.tokens) < len(tokens) and self.compiled.is_error() and self._may_renew():
            self.renew()
            self.accept(tokens[len(self.tokens) :])
        return len(self.tokens)

    def accept(self, tokens: Sequence[int]) -> int:
        """Go on by these tokens, or as many as fit; their number."""
        if self.is_over:
            return 0
        text, end = self.until_end(tokens)
        accepted = self.compiled.try_consume_tokens(text) if text else 0
        self.tokens += text[:accepted]
        if end and accepted == len(text) and self.compiled.is_accepting():
            self.tokens += end
            self.is_over = True
            accepted += 1
        return accepted

    def rollback(self, count: int) -> None:
        """Go back by so many tokens."""
        if not count:
            return
        del self.tokens[len(self.tokens) - count :]
        count -= self.is_over
        self.is_over = False
        if count and not self.compiled.rollback(count):  # llguidance cannot where a grammar counts tokens
            self.compiled = self.constraint.first.deep_copy()
            self.compiled.try_consume_tokens(self.tokens)

    def num_fitting(self, tokens: Sequence[int]) -> int:
        """Count how many of these tokens could come next, one after the other."""
        return self.fork().accept(tokens)

    def mask(self, words_W: Words) -> None:
        """Fill the mask of the next position. RequestError if the grammar takes more than its limits allow."""
        (error,) = self.masks(MaskRows(words_W[None], words_W.ctypes.data))
        if error is not None:
            raise error

    def masks(self, rows: MaskRows, drafts: Sequence[int] = ()) -> list[RequestError | None]:
        """Fill the masks of the next position and of the one after each draft. For each row, what it lacks if the
        grammar takes more than its limits allow.

        Rows behind an end, or behind a draft that does not fit, get all bits. They do not count: nothing that is chosen
        there fits.
        """
        errors = self._fill(rows, drafts)
        # Others may have used up what they share.
        if errors[-1] is not None and not isinstance(errors[-1], TooMuchForced) and self._may_renew():
            self.renew()
            errors = self._fill(rows, drafts)
        return errors

    def forced(self) -> list[int]:
        """Find the tokens that spell what must come next, and the end if nothing else may follow them.

        Other tokens may spell the same, so these are likely and no more.
        """
        if self.is_over or len(self.compiled.compute_ff_bytes()) > MAX_FORCED:
            return []
        tokens = list(self.compiled.compute_ff_tokens())
        ahead = self.fork() if tokens else self
        if ahead.accept(tokens) == len(tokens) and self.ends and ahead.may_end and ahead.compiled.is_stopped():
            tokens.append(self.ends[0])
        return tokens

    @property
    def may_end(self) -> bool:
        """Whether the text so far is whole."""
        return self.is_over or bool(self.compiled.is_accepting())

    @property
    def is_whole(self) -> bool:
        """Whether the text has ended although no token may say so."""
        return not self.ends and self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether the text so far is whole, and nothing may follow but its end."""
        return self.is_over or (self.may_end and (bool(self.compiled.is_stopped()) or self._admits_only_ends()))

    def _admits_only_ends(self) -> bool:
        """Whether the mask says so, because a grammar may find out late that nothing can follow."""
        words_W = np.zeros(self.constraint.vocabulary.words, dtype=np.int32)
        self.compiled.unsafe_compute_mask_ptr(words_W.ctypes.data, words_W.nbytes)
        forbid(self.constraint.vocabulary.ends, words_W)
        return not words_W.any()

    def _fill(self, rows: MaskRows, drafts: Sequence[int]) -> list[RequestError | None]:
        words_RW, ahead = rows.words_RW, self.fork() if drafts else self
        size = words_RW.shape[1] * words_RW.itemsize
        errors: list[RequestError | None] = [None] * (1 + len(drafts))
        words_RW[1:] = -1
        for number in range(len(errors)):
            fits = not number or ahead.accept(drafts[number - 1 : number]) > 0
            if fits and not ahead.is_over:
                try:
                    check_forced(ahead.compiled)
                except TooMuchForced as error:
                    errors[number:] = [error] * (len(errors) - number)
                    break
                # One by one: threads of llguidance's own would have to be woken, which takes longer than some masks.
                ahead.compiled.unsafe_compute_mask_ptr(rows.address + number * size, size)
                if self._absent:
                    self._remove_absent(words_RW[number], is_drafted=number > 0)
            elif not number:
                words_RW[0] = 0  # it is over
            if ahead.error is not None:
                errors[number:] = [ahead.error] * (len(errors) - number)
            if not fits or ahead.is_over or errors[number] is not None:
                break
        return errors

    def _remove_absent(self, words_W: Words, is_drafted: bool) -> None:
        """Forbid ends of the model that do not end this text. Behind a draft that nothing follows, nothing counts."""
        could_end = is_drafted and words_W.any()
        forbid(self._absent, words_W)
        if could_end and not words_W.any():
            words_W[:] = -1

    def fork(self) -> "Matcher":
        """Make another matcher in the same state."""
        other = Matcher(self.constraint, self.compiled.deep_copy(), self.ends)
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

    @property
    def error(self) -> RequestError | None:
        """Say that the grammar has reached a limit, after which it admits nothing, if it has."""
        if not (self.compiled.is_error() or self._is_short):
            return None
        why = " ".join(str(self.compiled.get_error()).split("\n<")[0].split())
        place = f"at token {len(self.tokens) + 1} of the text"
        return RequestError(f"the constraint of this request takes more than is allowed, {place}: {why}")

    def until_end(self, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """The tokens before the first end of the model, and that end if there is one and it ends this text."""
        ends = self.constraint.vocabulary.ends
        if not any(map(ends.__contains__, tokens)):
            return list(tokens), []
        place = next((at for at, token in enumerate(tokens) if token in ends), len(tokens))
        return list(tokens[:place]), [token for token in tokens[place : place + 1] if token in self.ends]


def _num_alike(ours: list[int], theirs: Sequence[int]) -> int:
    """Count the tokens at the beginning that both have."""
    shorter = min(len(ours), len(theirs))
    if ours[:shorter] == list(theirs[:shorter]):
        return shorter
    return next(at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
