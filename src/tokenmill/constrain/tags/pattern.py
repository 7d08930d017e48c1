r"""Regular expressions as xgrammar reads them, in the syntax of llguidance.

There \d, \w and \s are about ASCII (and \u00a0), a dot is any character, marks of the beginning and the end say nothing
at these places, and a set has no operators. A quantifier for few (`*?`) changes no text that fits.
"""

import re

_CODE = r"\\x(?P<hex>[0-9A-Fa-f]{2})|\\u(?P<code>[0-9A-Fa-f]{4})|\\u\{(?P<long>[0-9A-Fa-f]{1,6})\}|\\(?P<escape>.)"
_ATOM = re.compile(
    _CODE
    + r"""|\[(?P<set>\^?(?:\\.|[^\]\\])*)\]
      |(?P<open>\((?:\?(?:<[A-Za-z_]\w*>|.)?)?)
      |(?P<times>[*+?]|\{\d+(?:,\d*)?\})\??
      |(?P<plain>.)""",
    re.DOTALL | re.VERBOSE,
)
_MEMBER = re.compile(_CODE + "|(?P<plain>.)", re.DOTALL)
_KINDS = {"d": "0-9", "w": "A-Za-z0-9_", "s": r" \f\n\r\t\x0b\u{a0}"}
_LETTERS = {"n": r"\n", "r": r"\r", "t": r"\t", "f": r"\f", "v": r"\x0b", "0": r"\x00"}
_OPERATORS = "&~#"


class PatternError(Exception):
    """An expression is refused, with the reason."""


def read_pattern(text: str) -> str:
    """The expression as it stands between the slashes of a terminal. PatternError for one that is refused."""
    return "".join(_atom(found, found.start() == 0 or found.end() == len(text)) for found in _ATOM.finditer(text))


def _atom(found: re.Match[str], is_edge: bool) -> str:
    plain = found["plain"]
    if found["set"] is not None:
        return _set(found["set"])
    if found["times"]:
        return found["times"]
    if (group := found["open"]) is not None:
        if group in ("(", "(?:") or (group.startswith("(?<") and group.endswith(">")):
            return "(?:"
        raise PatternError(f"{group} is not possible: an expression looks neither ahead nor back, and has no flags")
    if plain is None:
        return _escaped(found, "[{}]")
    if plain in "^$":
        if not is_edge:
            raise PatternError(f"{plain} is possible at the beginning and at the end alone")
        return ""
    return r"(?s:.)" if plain == "." else _plain(plain)


def _escaped(found: re.Match[str], as_set: str) -> str:
    """What is written with a backslash."""
    if code := found["hex"] or found["code"] or found["long"]:
        return rf"\u{{{code}}}"
    letter = found["escape"]
    if kind := _KINDS.get(letter.lower()):
        return as_set.format(kind) if letter.islower() else f"[^{kind}]"
    if letter in _LETTERS:
        return _LETTERS[letter]
    if letter.isalnum():
        raise PatternError(rf"\{letter} is not possible")
    return _plain(letter) if letter in "\n\r\t" or not letter.isascii() else rf"\{letter}"


def _plain(letter: str) -> str:
    return {"/": r"\/", "\n": r"\n", "\r": r"\r", "\t": r"\t"}.get(
        letter, rf"\{letter}" if letter in _OPERATORS else letter
    )


def _set(inner: str) -> str:
    """A set of characters, in which nothing is an operator."""
    begin = "^" if inner.startswith("^") else ""
    made = "".join(
        _escaped(found, "{}") if found["plain"] is None else _plain(found["plain"]).replace("[", r"\[")
        for found in _MEMBER.finditer(inner[len(begin) :])
    )
    if not made:
        raise PatternError("a set of no characters is not possible")
    return f"[{begin}{made}]"
