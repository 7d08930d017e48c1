"""The bytes that one token adds to its text.

Bytes of consecutive tokens, joined, are the text. A character may be spread over several tokens, so that a token alone
is no text; and sentencepiece's tokens begin with the space before their word, which decoding a token alone would lose.
"""

import re
from collections.abc import Iterable

from tokenmill.text.tokenizer import Tokenizer

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _gpt2_letters() -> dict[str, int]:
    """Return GPT-2's letters for bytes: printable ones stand for themselves, the others for 256 and up, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_LETTERS = _gpt2_letters()
_OF_BYTES = {byte: letter for letter, byte in _LETTERS.items()}


def letters_of(raw: bytes) -> str:
    """Spell bytes in GPT-2's letters for them."""
    return "".join(map(_OF_BYTES.__getitem__, raw))


class Spelling:
    """The spelling of tokens as they stand in one text: of the next token, and of all that could have come in its
    place.

    The space that sentencepiece puts before a text belongs to its first token, and is no part of the text. Without a
    tokenizer a token is its id.
    """

    def __init__(self, tokenizer: Tokenizer | None, before: Iterable[int] = (), *, skip_special: bool = True) -> None:
        """Begin a text after the tokens `before`. skip_special: special tokens are no part of the text."""
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._begins = tokenizer is not None and not tokenizer.is_text(before)

    def text(self, token: int) -> str:
        """Return the token as people read it. U+FFFD stands for part of a character."""
        return self.bytes(token).decode(errors="replace")

    def bytes(self, token: int) -> bytes:
        """Return the bytes that the token adds to the text; of a special token its spelling."""
        if self._tokenizer is None:
            return str(token).encode()
        raw = token_bytes(self._tokenizer, token)
        if self._begins and raw.startswith(b" ") and not self._tokenizer.decode([token], False).startswith(" "):
            return raw[1:]
        return raw

    def go_on(self, token: int) -> None:
        """Note that this token has come."""
        if self._begins and self._tokenizer is not None:
            self._begins = self._skip_special and token in self._tokenizer.special_ids


def spelled_texts(tokenizer: Tokenizer | None, tokens: Iterable[int], before: Iterable[int] = ()) -> list[str]:
    """Return each token of a text as people read it; see Spelling."""
    spelling, texts = Spelling(tokenizer, before), []
    for token in tokens:
        texts.append(spelling.text(token))
        spelling.go_on(token)
    return texts


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes that a token adds to a text: of a special token its spelling; nothing for an unknown id."""
    (found,) = bytes_of_each(tokenizer, (token,))
    return found


def bytes_of_each(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[bytes]:
    """Return the bytes of several tokens; see token_bytes."""
    read = {token: _read(tokenizer, token) for token in tokens}
    others = [token for token, raw in read.items() if raw is None]
    read |= {token: text.encode() for token, text in zip(others, tokenizer.decode_each(others), strict=True)}
    return [raw for raw in read.values() if raw is not None]


def _read(tokenizer: Tokenizer, token: int) -> bytes | None:
    """Return the bytes of a token whose spelling tells them; None for one that has to be decoded."""
    spelling = tokenizer.backend.id_to_token(token)
    if spelling is None:
        return b""
    if token in tokenizer.added_ids:
        return spelling.encode()
    if tokenizer.is_byte_level and all(letter in _LETTERS for letter in spelling):
        return bytes(_LETTERS[letter] for letter in spelling)
    if token in tokenizer.byte_ids and (found := _BYTE.fullmatch(spelling)):
        return bytes([int(found[1], 16)])
    return None
