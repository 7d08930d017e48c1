"""Facts about terminals, such as whether one matches anything. llguidance finds them: each terminal is compiled for a
vocabulary of 256 bytes, and the first mask is read.
"""

import json
from functools import lru_cache

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tokenmill.constrain.room import check_wanted

NUM_BYTES = 256
_ASCII = 0x80
_KEPT = 1024
_LIMITS = LLParserLimits(initial_lexer_fuel=3_000_000, verbose_errors=False)


class TerminalError(Exception):
    """llguidance cannot compile a terminal. The message is llguidance's."""


class _Bytes:
    """A vocabulary of bytes, and an end."""

    eos_token_id = NUM_BYTES
    bos_token_id = None
    special_token_ids = (NUM_BYTES,)
    tokens = (*(bytes([number]) for number in range(NUM_BYTES)), b"\xff<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@lru_cache(1)
def _vocabulary() -> LLTokenizer:
    return LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


@lru_cache(_KEPT)
def facts(expr: str) -> tuple[frozenset[int], bool]:
    """Find the bytes that a text of this terminal may begin with, and whether it may be empty. TerminalError for a
    terminal that cannot be compiled.
    """
    check_wanted()
    lark = f"start: ASKED\nASKED: {expr}"
    text = json.dumps({"grammars": [{"name": "asked", "lark_grammar": lark}]})
    matcher = LLMatcher(_vocabulary(), text, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise TerminalError(_told(matcher))
    may_be_empty = bool(matcher.is_accepting())
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if matcher.is_error() and not matcher.get_error().startswith("NoExtension"):
        raise TerminalError(_told(matcher))
    return frozenset(np.flatnonzero(mask[:NUM_BYTES]).tolist()), may_be_empty


def is_nothing(expr: str) -> bool:
    """Return whether a terminal matches no text."""
    first, may_be_empty = facts(expr)
    return not first and not may_be_empty


def set_of(numbers: frozenset[int]) -> str:
    """Write an expression for the characters that begin with these bytes; for every character that is not ASCII, if
    one of the bytes is not.
    """
    ascii_ = "".join(rf"\x{number:02x}" for number in sorted(numbers) if number < _ASCII)
    others = r"\u{80}-\u{10ffff}" if any(number >= _ASCII for number in numbers) else ""
    return f"/[{ascii_}{others}]/"


def _told(matcher: LLMatcher) -> str:
    return str(matcher.get_error()).partition("\n<")[0].strip()
