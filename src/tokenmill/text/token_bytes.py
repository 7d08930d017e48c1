"""Tokens to bytes: what each token adds to a text in which others stand before it.

Bytes of consecutive tokens, joined, are the text. A character may be spread over several tokens, so that a token alone
is no text; and sentencepiece's tokens begin with the space before their word, which decoding a token alone would lose.
"""

import re

from tokenmill.text.tokenizer import Tokenizer

__all__ = ["spelled", "token_bytes"]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _gpt2_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: printable ones stand for themselves, the others for 256 and up, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_LETTERS = _gpt2_letters()


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """The bytes of one token, those of a special token too; none of an id that is no token."""
    spelling = tokenizer.backend.id_to_token(token)
    if spelling is None:
        return b""
    if token in tokenizer.added_ids:
        return spelling.encode()
    if tokenizer.is_byte_level and all(letter in _LETTERS for letter in spelling):
        return bytes(_LETTERS[letter] for letter in spelling)
    if token in tokenizer.byte_ids and (found := _BYTE.fullmatch(spelling)):
        return bytes([int(found[1], 16)])
    return tokenizer.decode([token], skip_special=False, continues=True).encode()


def spelled(tokenizer: Tokenizer | None, token: int) -> str:
    """One token as people read it; its id for a model without a tokenizer. U+FFFD stands for part of a character."""
    return str(token) if tokenizer is None else token_bytes(tokenizer, token).decode(errors="replace")
