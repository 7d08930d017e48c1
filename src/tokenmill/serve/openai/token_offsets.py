"""Offsets of tokens: the place in an answer's text at which each begins."""

from collections.abc import Sequence

from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.token_bytes import Spelling
from tokenmill.text.tokenizer import Tokenizer


class TokenOffsets:
    """The offset in characters at which each token begins. spelling: of the token that comes next."""

    def __init__(
        self, tokenizer: Tokenizer | None, before: Sequence[int], skip_special: bool, given: str | None = None
    ) -> None:
        """before: tokens before those that are counted. given: a text that begins with their text, as it was sent: a
        special token is part of it only where it spells that token.
        """
        self._tokenizer, self._given, self._length, self._held = tokenizer, given, 0, b""
        skips = skip_special or given is not None
        self._left_out = tokenizer.special_ids if tokenizer is not None and skips else frozenset()
        self.spelling = Spelling(tokenizer, before, skip_special=skips)
        self._detokenizer = None
        if tokenizer is not None:
            self._detokenizer = Detokenizer(tokenizer, prompt=before, skip_special=skips)

    def next(self, token: int) -> int:
        """The offset of a token, which follows those of the calls before."""
        # Of text that is still held back only characters that are complete count.
        start = self._length + len(self._held.decode(errors="ignore"))
        if self._detokenizer is not None:
            shown = len(self._detokenizer.push([token]))
            is_text = token not in self._left_out
            self._held = b"" if shown else self._held + (self.spelling.bytes(token) if is_text else b"")
            self._length += shown or self._spelled_length(token)
        self.spelling.go_on(token)
        return start

    def _spelled_length(self, token: int) -> int:
        """The length of a special token that the given text spells; 0 for others."""
        if self._given is None or self._tokenizer is None or token not in self._tokenizer.special_ids:
            return 0
        text = self.spelling.text(token)
        return len(text) if self._given.startswith(text, self._length) else 0
