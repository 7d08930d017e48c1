r"""Grammars in GBNF, as llama.cpp has them, in Lark. llguidance's translator reads them; this spells them for it first,
and writes the rules (gbnf_words.py).

It drops leading zeros of \u0041, so that digits behind it become part of the character; it makes a set of characters a
regular expression, in which &&, -- and ~~ are operators; and its dot is no line break.
"""

import re

from llguidance.gbnf_to_lark import GrammarParser

from tokenmill.constrain.gbnf_words import lark_of
from tokenmill.errors import ConfigError
from tokenmill.settings.constraint import shortened

_RULE = re.compile(r"^[^\S\n]*[A-Za-z][\w-]*\s*::=", re.MULTILINE)
# Each alternative matches at its first letter without going back, so that long grammars take no longer for their size.
_PARTS = re.compile(r'#[^\r\n]*|"(?:\\.?|[^"\\])*"?|\[(?:\\.?|[^\]\\])*\]?|\.', re.DOTALL)
_ANY = "[\\x00-\U0010ffff]"
_LETTER = re.compile(
    r"\\u(?P<short>[0-9A-Fa-f]{4})|\\U(?P<long>[0-9A-Fa-f]{8})|\\x[0-9A-Fa-f]{2}|\\.|(?P<plain>.)", re.DOTALL
)


def is_gbnf(text: str) -> bool:
    """Return whether a grammar has a rule in GBNF."""
    return _RULE.search(text) is not None


def lark_of_gbnf(text: str) -> str:
    """Write a grammar in Lark. ConfigError for a wrong one."""
    try:
        rules = GrammarParser().parse(_PARTS.sub(_spelled, text))
        return lark_of({name: rule.alternatives for name, rule in rules.items()})
    except Exception as error:  # noqa: BLE001  (some of the translator's are of no class of its own)
        raise ConfigError("grammar", shortened(text), f"as GBNF it is wrong: {error}") from None


def _spelled(part: re.Match[str]) -> str:
    """Write a text, or a set of characters, without \\u, \\U and operators of sets; a comment as it is."""
    found = part[0]
    if found[0] == "#":
        return found
    if found == ".":
        return _ANY
    if found[0] == '"':
        return found[0] + _LETTER.sub(_letter, found[1:])
    begin = 2 if found[1:2] == "^" else 1
    is_closed = found[-1] == "]" and len(found) > begin
    end = len(found) - is_closed
    letters = list(_LETTER.finditer(found, begin, end))
    is_range = [each["plain"] == "-" and 0 < number < len(letters) - 1 for number, each in enumerate(letters)]
    for number in range(1, len(letters)):  # the end of a range begins no other
        is_range[number] &= not (is_range[number - 1] or (number > 1 and is_range[number - 2]))
    made = ("-" if dash else _in_set(each) for each, dash in zip(letters, is_range, strict=True))
    return found[:begin] + "".join(made) + found[end:]


def _letter(match: re.Match[str]) -> str:
    """Write a letter that is told by its number as itself; any other as it is written."""
    if not (digits := match["short"] or match["long"]):
        return match[0]
    number = int(digits, 16)
    if number < 0x80:
        return f"\\x{number:02x}"
    if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
        raise ValueError(f"{match[0]} is no character")
    return chr(number)


def _in_set(match: re.Match[str]) -> str:
    """Write a letter of a set so that it is no operator."""
    plain = match["plain"]
    return f"\\x{ord(plain):02x}" if plain and plain in "&~-^[/" else _letter(match)
