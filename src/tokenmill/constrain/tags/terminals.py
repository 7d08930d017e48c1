"""Facts about terminals, such as whether one matches anything. llguidance finds them: each terminal is compiled for a
vocabulary of 256 bytes, and the first mask is read.
"""

import json
from collections.abc import Mapping
from functools import lru_cache

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tokenmill.constrain.room import check_wanted

NUM_BYTES = 256
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


def facts(expr: str, *named: Mapping[str, str]) -> tuple[frozenset[int], bool]:
    """The bytes that a text of this terminal may begin with, and whether it may be empty. named: terminals that it
    names. TerminalError for one that cannot be compiled.
    """
    known = {name: body for each in named for name, body in each.items()}
    lines = [f"{name}: {body}" for name, body in sorted(known.items())]
    return facts_of("\n".join(["start: ASKED", f"ASKED: {expr}", *lines]))


@lru_cache(_KEPT)
def facts_of(grammar: str) -> tuple[frozenset[int], bool]:
    """The same for a grammar in Lark."""
    check_wanted()
    text = json.dumps({"grammars": [{"name": "asked", "lark_grammar": grammar}]})
    matcher = LLMatcher(_vocabulary(), text, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise TerminalError(_told(matcher))
    may_be_empty = bool(matcher.is_accepting())
    mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    if matcher.is_error() and not matcher.get_error().startswith("NoExtension"):
        raise TerminalError(_told(matcher))
    return frozenset(np.flatnonzero(mask[:NUM_BYTES]).tolist()), may_be_empty


def is_nothing(expr: str, *named: Mapping[str, str]) -> bool:
    """Whether a terminal matches no text."""
    first, may_be_empty = facts(expr, *named)
    return not first and not may_be_empty


def _told(matcher: LLMatcher) -> str:
    return str(matcher.get_error()).partition("\n<")[0].strip()
