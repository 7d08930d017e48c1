"""A second matcher of a grammar, compiled without forcing: it tells where llguidance may look for forced bytes.

llguidance looks for forced bytes (its fast-forward tokens) before it fills a mask. Where the grammar can never end, as
in `/x+/ "x"`, whose first terminal takes every `x`, that search never ends either, and nothing can stop it. So a mask
of a grammar that a user has written is this matcher's, wherever the tokens that may come begin with different bytes: no
byte is forced there, and both matchers have the same mask. Elsewhere the forced bytes are followed here, one token
after the other, up to the limits below, before llguidance looks for them.
"""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
from llguidance import LLMatcher

from tokenmill.constrain.masks import Words
from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import RequestError

MAX_RENEWED = 8
"""So often a grammar may be compiled again for one text."""
MAX_FOLLOWED = 2 * 1024
"""Forced bytes at one place that are followed; a constraint may demand no more."""
MAX_S = 0.2
"""Seconds of the processor for which they are followed. 2 KiB take 10 to 20 ms, and a hundred times as long where a
grammar has thousands of derivations of the same text.
"""


class TooMuchForced(RequestError):
    """A constraint forces more bytes at one place than it may. Compiling it again would change nothing."""


@dataclass
class Patience:
    """seconds: for which forced bytes are followed under a constraint; half as many each time they were not enough, so
    that a hundred texts of a request do not take a hundred times as long.
    """

    seconds: float = field(default_factory=lambda: MAX_S)


class Watch:
    """Follows the tokens of one text. make: another matcher at its beginning, which shares nothing with other texts'
    so far; None if it takes long to make. patience: that of all texts of a constraint.
    """

    def __init__(
        self, first: LLMatcher, make: Callable[[], LLMatcher | None], vocabulary: Vocabulary, patience: Patience
    ) -> None:
        self._first, self._make_first, self._vocabulary, self._patience = first, make, vocabulary, patience
        self._compiled, self._tokens, self._num_renewed = first.deep_copy(), list[int](), 0
        self._num_followed = 0  # forced bytes from here on that have been followed already
        self._error = ""  # what was found out after these tokens
        self._words_W: Words = np.zeros(vocabulary.words, dtype=np.int32)
        self._address = self._words_W.ctypes.data

    def copy(self) -> "Watch":
        """Another one for the same text."""
        other = copy(self)  # the mask that is filled for itself alone holds for no longer than a call
        other._compiled, other._tokens = self._compiled.deep_copy(), list(self._tokens)
        return other

    def forces(self, tokens: Sequence[int]) -> bool:
        """Whether the byte after these tokens is forced. See `fill`."""
        return not self.fill(tokens, self._words_W, self._address)

    def fill(self, tokens: Sequence[int], words_W: Words, address: int) -> bool:
        """Fill the mask after these tokens, which lies at an address. False where the next byte is forced: then the
        matcher that forces has to fill it.

        TooMuchForced if more bytes are forced there than may be; RequestError if the grammar exceeds its limits.
        """
        self._follow(tokens)
        if self._error:
            raise TooMuchForced(self._error)
        if self._num_followed > 0:
            return False
        self._compiled.unsafe_compute_mask_ptr(address, words_W.nbytes)
        if self._compiled.is_error():
            self._renew()
            self._compiled.unsafe_compute_mask_ptr(address, words_W.nbytes)
        if self._vocabulary.begin_alike(words_W) is None:
            return True
        try:
            self._num_followed = self._follow_forced()
        except TooMuchForced as error:
            self._error = str(error)
            raise
        return False

    def _follow_forced(self) -> int:
        """Count the forced bytes. TooMuchForced if they are more than may be."""
        ahead, num_bytes, until_s = self._compiled.deep_copy(), 0, time.thread_time() + self._patience.seconds
        while num_bytes <= MAX_FOLLOWED and time.thread_time() < until_s:
            ahead.unsafe_compute_mask_ptr(self._address, self._words_W.nbytes)
            token = self._vocabulary.begin_alike(self._words_W)
            if token is None or ahead.try_consume_tokens([token]) < 1:
                return num_bytes
            num_bytes += max(self._vocabulary.num_bytes(token), 1)
        if num_bytes <= MAX_FOLLOWED:
            self._patience.seconds /= 2
        many = f"{num_bytes:,} bytes at one place, or more"
        possible = f"{MAX_FOLLOWED:,} are possible, if they are found in {MAX_S:g} s"
        raise TooMuchForced(f"the constraint of this request demands {many}; {possible}")

    def _follow(self, tokens: Sequence[int]) -> None:
        num_known = len(self._tokens)
        if list(tokens[:num_known]) != self._tokens:
            self._compiled, self._tokens, num_known = self._first.deep_copy(), [], 0
            self._num_followed, self._error = 0, ""
        if new := list(tokens[num_known:]):
            self._tokens += new
            self._error = ""
            self._num_followed -= sum(map(self._vocabulary.num_bytes, new))
            if self._compiled.try_consume_tokens(new) < len(new):
                self._renew()

    def _renew(self) -> None:
        """Begin again with a matcher of its own, since others may have used up what copies share."""
        self._num_renewed += 1
        first = self._make_first() if self._num_renewed <= MAX_RENEWED else None
        if first is not None:
            self._first, self._compiled = first, first.deep_copy()
            if self._compiled.try_consume_tokens(self._tokens) == len(self._tokens) and not self._compiled.is_error():
                return
        place = f"at token {len(self._tokens) + 1} of the text"
        raise RequestError(f"the constraint of this request takes more than is allowed, {place}")
