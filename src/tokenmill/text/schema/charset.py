r"""Sets of characters as ranges of code points, and how they are written in the syntax of llguidance.

Everything that means other characters in other dialects (\d, \w, \s, a dot) is told by its ranges here. Where ECMA-262
and Python differ, a set has the characters that belong to it in both, so that a text fits by either.
"""

import sys
from collections.abc import Iterable
from functools import lru_cache

Ranges = tuple[tuple[int, int], ...]
"""Code points, as pairs of the first and the last one; in order, and apart from each other. Surrogates are in none."""

_SURROGATES = (0xD800, 0xDFFF)
_KEPT = 512  # sets, most of which are one character
_MOST_FOLDED = 0x3000  # code points of a set whose other cases are looked up one by one
_SHORT = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t"}


def ranges_of(pairs: Iterable[tuple[int, int]]) -> Ranges:
    """Return the ranges of these pairs, put in order."""
    found = list[tuple[int, int]]()
    for first, last in sorted(pairs):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    low, high = _SURROGATES
    return tuple(
        piece
        for first, last in found
        for piece in ((first, min(last, low - 1)), (max(first, high + 1), last))
        if piece[0] <= piece[1]
    )


def inverted(ranges: Ranges) -> Ranges:
    """Return all other characters."""
    found, at = [], 0
    for first, last in ranges:
        found.append((at, first - 1))
        at = last + 1
    return ranges_of(pair for pair in (*found, (at, sys.maxunicode)) if pair[0] <= pair[1])


def common(one: Ranges, other: Ranges) -> Ranges:
    """Return the characters of both."""
    return inverted(ranges_of((*inverted(one), *inverted(other))))


def without(one: Ranges, other: Ranges) -> Ranges:
    """Return the characters of the first set that are not in the second."""
    return common(one, inverted(other))


@lru_cache(_KEPT)
def letters(text: str) -> Ranges:
    """Return the set of these characters."""
    return ranges_of((ord(each), ord(each)) for each in text)


def folded(ranges: Ranges) -> Ranges:
    """Return the characters of a set and their other cases; of a large set the other cases of ASCII alone."""
    few = ranges if sum(last - first + 1 for first, last in ranges) <= _MOST_FOLDED else common(ranges, ((0, 127),))
    cases = (case for first, last in few for code in range(first, last + 1) for case in _cases(chr(code)))
    return ranges_of((*ranges, *((ord(each), ord(each)) for each in cases)))


def _cases(letter: str) -> list[str]:
    """Return the other case of a letter, where it is one character and its other case is this letter again."""
    return [
        each for each in (letter.lower(), letter.upper()) if len(each) == 1 and letter in (each.upper(), each.lower())
    ]


ANY = ranges_of(((0, sys.maxunicode),))
DIGITS = ((0x30, 0x39),)
WORDS = letters("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
LINES = letters("\n\r\u2028\u2029")
_SPACES = ranges_of((*letters("\t\n\v\f\r \u00a0\u1680\u2028\u2029\u202f\u205f\u3000"), (0x2000, 0x200A)))
_SHORTEST_GAP = 16


@lru_cache(maxsize=8)
def kind(letter: str, is_wide: bool = False) -> Ranges:
    r"""Return the set of \d, \w, \s or their opposites, of which both ECMA-262 and Python take each character; is_wide:
    of which either does.
    """
    if letter.isupper():
        return inverted(kind(letter.lower(), not is_wide))
    if not is_wide:
        return {"d": DIGITS, "w": WORDS, "s": _SPACES}[letter]
    if letter == "s":
        return ranges_of((*_SPACES, (0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF)))
    if letter == "d":
        return ranges_of((code, code) for code in range(0x20000) if chr(code).isdecimal())
    found = ranges_of((code, code) for code in range(0xD800) if chr(code).isalnum() or code == ord("_"))
    # A few hundred short gaps between letters of many scripts would make expressions long.
    gaps = (pair for pair in inverted(found) if pair[1] - pair[0] >= _SHORTEST_GAP or pair[1] < 0x100)
    emoji = (0x1F300, 0x1F64F)
    return inverted(ranges_of((*(pair for pair in gaps if pair[1] < 0xE000), emoji)))


@lru_cache(_KEPT)
def written(ranges: Ranges) -> str:
    """Write a set in the syntax of Rust's expressions."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return escaped(ranges[0][0])
    if not ranges:
        return r"[^\s\S]"
    other = inverted(ranges)
    mark, shorter = ("^", other) if other and len(other) < len(ranges) else ("", ranges)
    return f"[{mark}{members(shorter)}]"


def members(ranges: Ranges) -> str:
    """Write the characters of a set, as they stand between its brackets."""
    return "".join(map(_range, ranges))


@lru_cache(_KEPT)
def quoted(ranges: Ranges) -> str:
    """Write a set, each of whose characters stands as in a text of JSON. The one spelling is Python's json's, with
    which U+007F is escaped as well.
    """
    plain = without(ranges, ESCAPED)
    parts = [written(plain)] if plain else []
    short = [text for code, text in _SHORT.items() if _has(ranges, code)]
    if short:
        parts.append(rf"\\[{''.join(escaped(ord(text[1])) for text in short)}]")
    coded = without(common(ranges, ESCAPED), letters("".join(map(chr, _SHORT))))
    for first in range(0, 0x80, 0x10):
        if last := "".join(f"{code & 15:x}" for code in range(first, first + 16) if _has(coded, code)):
            parts.append(rf"\\u00{first >> 4:x}[{last}]")
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})" if parts else r"[^\s\S]"


ESCAPED = ranges_of(((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F)))
"""The characters that JSON does not write as they are."""


def escaped(code: int) -> str:
    """Write one character so that it is no operator in a set or outside of it, nor the end of a terminal."""
    letter = chr(code)
    if letter.isascii() and letter.isalnum():
        return letter
    if 0x20 <= code < 0x7F:
        return letter if letter in " _<>\"'`,;:=!@%" else f"\\{letter}"
    return letter if letter.isprintable() and code > 0x7F else f"\\x{{{code:x}}}"


def _range(pair: tuple[int, int]) -> str:
    first, last = map(escaped, pair)
    return first if pair[0] == pair[1] else f"{first}{last}" if pair[0] + 1 == pair[1] else f"{first}-{last}"


def _has(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)
