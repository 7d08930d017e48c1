"""Tokens to text as they come: nothing is shown that a later token could still change or take back.

Text is held back while it ends in an unfinished character or in a run of byte tokens, and while its end could still
become a stop string. What is shown, piece by piece, is in the end the decoding of all tokens at once, cut at the first
stop string. Bytes that no later one can make a character are shown at once. Only a short window is decoded per step, so
the cost of a token does not grow with the length.
"""

import codecs
from collections.abc import Collection, Sequence

from tokenmill.text.token_bytes import token_bytes
from tokenmill.text.tokenizer import Tokenizer

UNFINISHED = "\ufffd"  # what a decoder shows for bytes that are no character yet


class Detokenizer:
    """One sequence's text, after the tokens of `prompt`. skip_special: without the text of special tokens, unless they
    are among `shown`.

    text: all that was shown. stopped: the stop string that ended it. num_tokens_used: pushed tokens up to and including
    the one that completed that match; all of them before. The match that is complete first wins, and the
    longest of several that end together. A match that the first `min_tokens` tokens complete stops nothing.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        prompt: Sequence[int] = (),
        skip_special: bool = True,
        shown: Collection[int] = (),
        min_tokens: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        # After a prompt that is text, the first token's space is a space; otherwise sentencepiece leaves it out.
        self._continues = tokenizer.is_text(prompt)
        self._skipped = tokenizer.special_ids.difference(shown) if skip_special else frozenset()
        # Tokens before `_first` are decoded for good; those up to `_shown` are decoded again as context only.
        self._tokens: list[int] = []
        self._first = self._shown = 0
        self._held = ""
        self._utf8 = codecs.getincrementaldecoder("utf-8")()  # of the run of byte tokens that the tokens end with
        self._is_broken = False  # whether that run is no UTF-8, so that each of its bytes is U+FFFD
        self.go_on(stop=stop, include_stop=include_stop, min_tokens=min_tokens)

    def go_on(self, *, stop: Sequence[str] = (), include_stop: bool = False, min_tokens: int = 0) -> None:
        """Begin a new text after the pushed tokens; what they have held back comes first in it."""
        self.text = ""
        self.stopped: str | None = None
        self.num_tokens_used = 0
        self._stop, self._include_stop, self._min_tokens = tuple(stop), include_stop, min_tokens
        self._num_free = 0  # characters of the held text within which no match ends that counts
        self.has_stops = bool(self._stop)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take in tokens and return the text that is safe to show because of them; nothing more after a stop string."""
        pieces = []
        for token in token_ids:
            if self.stopped is not None:
                break
            self.num_tokens_used += 1
            if token in self._skipped:
                continue  # no text, and what stands around it is decoded as if it were not there
            self._tokens.append(token)
            pieces.append(self._release(final=False))
        return "".join(pieces)

    def finish(self, cut: bool = False) -> str:
        """Return the text that was held back, now that no tokens come. `cut`: without a character that has begun."""
        if cut:
            self._leave_out_unfinished()
        return "" if self.stopped is not None else self._release(final=True)

    def _leave_out_unfinished(self) -> None:
        """Take in the text of the last tokens up to the character that they began, and forget the rest of them."""
        before, after = (self._text_of(self._tokens[self._first : end]) for end in (self._shown, None))
        if not after.endswith(UNFINISHED):
            return
        whole = after[:-1]  # of the bytes that have begun a character a decoder makes one mark
        for first in range(len(self._tokens) - 1, max(len(self._tokens) - 4, self._shown - 1), -1):
            if self._tokens[first] not in self._tokenizer.byte_ids:
                break  # each token of a byte has a mark of its own, also in characters before them
            if not (known := self._text_of(self._tokens[self._first : first])).endswith(UNFINISHED):
                whole = known
                break
        self._held += whole[len(before) :]
        self._first = self._shown = len(self._tokens)

    def _text_of(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special=False, continues=self._continues)

    def _decode(self, final: bool) -> str:
        """Return new text since the last call; none while it ends in an unfinished character."""
        if not self._tokens:
            return ""
        was_broken = self._is_broken
        in_run = not final and self._tokens[-1] in self._tokenizer.byte_ids and self._read_byte(self._tokens[-1])
        if in_run and not self._is_broken:
            return ""
        before, after = (self._text_of(self._tokens[self._first : end]) for end in (self._shown, None))
        if in_run:
            return self._cut(UNFINISHED if was_broken else after[len(before) :])
        if len(after) <= len(before) or (not final and after.endswith(UNFINISHED) and self._could_complete()):
            return ""
        self._utf8.reset()
        self._is_broken = False
        self._first, self._shown = self._shown, len(self._tokens)
        return after[len(before) :]

    def _read_byte(self, token: int) -> bool:
        """Add a byte token to the run and return true. One byte that is no UTF-8 breaks the whole run."""
        try:
            self._utf8.decode(token_bytes(self._tokenizer, token))
        except UnicodeDecodeError:
            self._is_broken = True
        return True

    def _cut(self, text: str) -> str:
        """Return text that stands whatever follows: the tokens so far are not even context of later ones."""
        self._first = self._shown = len(self._tokens)
        self._continues = True
        return text

    def _could_complete(self) -> bool:
        """Return whether the bytes of the tokens that are not shown end in the beginning of a character."""
        if not self._tokenizer.is_byte_level:
            return not self._tokenizer.byte_ids
        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        utf8.decode(b"".join(token_bytes(self._tokenizer, token) for token in self._tokens[self._shown :]))
        return bool(utf8.getstate()[0])

    def _release(self, final: bool) -> str:
        """Return the part of held and new text that can be shown; a stop string ends everything."""
        self._held += self._decode(final)
        # By the end of the match, not its start: so the choice does not depend on how much text came at once.
        if 0 < self.num_tokens_used <= self._min_tokens:
            self._num_free = len(self._held)
        matches = ((self._held.find(stop, max(self._num_free - len(stop) + 1, 0)), stop) for stop in self._stop)
        found = [(start + len(stop), start, stop) for start, stop in matches if start >= 0]
        if found:
            _, start, self.stopped = min(found)
            safe = start + (len(self.stopped) if self._include_stop else 0)
        else:
            safe = len(self._held) - (self._could_grow() if self.has_stops and not final else 0)
        shown, self._held = self._held[:safe], self._held[safe:]
        self._num_free = max(self._num_free - safe, 0)
        self.text += shown
        return shown

    def _could_grow(self) -> int:
        """Return the length of the longest end of the held text that is the beginning of a stop string."""
        starts = (stop[:length] for stop in self._stop for length in range(1, min(len(stop), len(self._held) + 1)))
        return max((len(start) for start in starts if self._held.endswith(start)), default=0)
