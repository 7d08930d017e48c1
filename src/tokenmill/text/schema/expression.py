r"""Regular expressions as schemas have them, ECMA-262's and Python's, read into a tree and written for llguidance.

llguidance has the syntax of Rust's library, in which sets have operators ([, &&, --, ~~), and \d, \w, \s and a dot are
other characters. So an expression is read here, and written with each set spelled out. Where the two dialects differ,
the expression that is written holds for texts that fit by both.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.text.schema.charset import ANY, LINES, Ranges, folded, inverted, kind, letters, ranges_of, without


class PatternError(ValueError):
    """An expression is refused, with the reason."""


@dataclass(frozen=True)
class Set:
    """One character of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class Property:
    r"""One character of a set or with one of these properties of Unicode, \p{…} or \P{…}; negated: any other one."""

    ranges: Ranges
    names: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True)
class Chain:
    """Parts, one after the other."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class OneOf:
    """One of several parts."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True)
class Times:
    """A part, repeated from least to most times; None: without a limit."""

    part: "Node"
    least: int
    most: int | None


@dataclass(frozen=True)
class Edge:
    """The beginning of the text, or its end."""

    is_begin: bool


@dataclass(frozen=True)
class Look:
    """A part with which the text that follows begins, or does not begin: it is looked at and not read."""

    part: "Node"
    is_negative: bool


Node = Set | Property | Chain | OneOf | Times | Edge | Look
NOTHING = Chain(())
ANYTHING = Times(Set(ANY), 0, None)


def has_look(node: Node) -> bool:
    """Return whether an expression looks ahead."""
    parts = node.parts if isinstance(node, Chain | OneOf) else (node.part,) if isinstance(node, Times) else ()
    return isinstance(node, Look) or any(map(has_look, parts))


_TOKEN = re.compile(
    r"""\\(?:c(?P<control>[A-Za-z])|x(?P<hex>[0-9A-Fa-f]{2})|u(?P<code>[0-9A-Fa-f]{4})|U(?P<python>[0-9A-Fa-f]{8})
          |[ux]\{(?P<long>[0-9A-Fa-f]{1,6})\}|[pP]\{\^?(?P<property>[\w=:\- ]+)\}|(?P<escape>.)|(?P<open>$))
      |\((?P<group>\?(?:<[^>=!]*>|P<\w+>|[imsuxaLR-]*[:)]|\#[^)]*\)?|<?.?))?
      |(?P<times>[*+?]|\{(?:\d+(?:,\d*)?|,\d+)\})(?P<lazy>[?+]?)
      |(?P<plain>.)""",
    re.DOTALL | re.VERBOSE,
)
_PAIR = re.compile(r"\\u([dD][89abAB][0-9A-Fa-f]{2})\\u([dD][c-fC-F][0-9A-Fa-f]{2})")
_LETTERS = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "0": 0, "a": 7}
MOST_TIMES = 100_000
_MOST_OPEN = 150  # groups, one in the other


class _Flags(NamedTuple):
    """The flags that change the meaning of parts. is_wide: sets have what belongs to them in either dialect, as in a
    part that must not follow.
    """

    folds: bool = False
    dot_all: bool = False
    is_wide: bool = False


def read(text: str) -> Node:
    """Read an expression into a tree. PatternError for an expression that is refused."""
    reader = _Reader(_PAIR.sub(_joined, text))
    made = reader.choice(_Flags(), 0)
    if reader.at < len(reader.text):
        raise PatternError(f"a ) of {text[:40]!r} closes no group")
    return made


def _joined(pair: re.Match[str]) -> str:
    """Write two halves of a character beyond U+FFFF as one."""
    high, low = int(pair[1], 16), int(pair[2], 16)
    return f"\\u{{{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):x}}}"


class _Reader:
    """A reader of an expression from its first letter to its last."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def choice(self, flags: _Flags, depth: int) -> Node:
        """Read several rows, up to the end or to a bracket."""
        if depth > _MOST_OPEN:
            raise PatternError(f"more than {_MOST_OPEN} groups are open at one place")
        found = list[Node]()
        while True:
            row, flags = self._row(flags, depth)
            found.append(row)
            if not self.text.startswith("|", self.at):
                return found[0] if len(found) == 1 else OneOf(tuple(found))
            self.at += 1

    def _row(self, flags: _Flags, depth: int) -> tuple[Node, _Flags]:
        """Read parts one after the other; return them, and the flags behind them."""
        parts = list[Node]()
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            found = _TOKEN.match(self.text, self.at)
            assert found is not None
            self.at = found.end()
            if found["times"]:
                if not parts:
                    raise PatternError(f"{found[0]} repeats nothing")
                parts[-1] = _times(parts[-1], found)
            elif found[0].startswith("("):
                part, flags = self._group(found["group"] or "", flags, depth)
                parts += [part] if part is not None else []
            elif found[0] == "[":
                parts.append(self._set(flags))
            else:
                parts.append(self._atom(found, flags))
        return (parts[0] if len(parts) == 1 else Chain(tuple(parts))), flags

    def _group(self, mark: str, flags: _Flags, depth: int) -> tuple[Node | None, _Flags]:
        """Read a group behind its mark, or the flags that it sets; return the group, and the flags behind it."""
        if mark.startswith("?#"):
            return None, flags
        named = re.fullmatch(r"\?(?:P?<\w+>)", mark)
        set_here = re.fullmatch(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])", mark)
        looks = mark in ("?=", "?!")
        if mark in ("?<=", "?<!"):
            raise PatternError(f"look-behind, as ({mark} is, is not possible: an expression does not look back")
        if mark and not named and not set_here and not looks:
            raise PatternError(f"({mark} is not possible")
        inner = flags._replace(is_wide=flags.is_wide != (mark == "?!"))
        if set_here:
            if unknown := set(set_here[1] + (set_here[2] or "")) - set("isuaL"):
                raise PatternError(f"the flag {min(unknown)} of ({mark} is not possible")
            on, off = set(set_here[1]), set(set_here[2] or "")
            folds, dot_all = (
                (flag in on or had) and flag not in off for flag, had in zip("is", flags[:2], strict=True)
            )
            inner = _Flags(folds, dot_all, flags.is_wide)
            if set_here[3] == ")":
                return None, inner
        made = self.choice(inner, depth + 1)
        if not self.text.startswith(")", self.at):
            raise PatternError(f"an unclosed group: a ( of {self.text[:40]!r} has no )")
        self.at += 1
        return (Look(made, mark == "?!") if looks else made), flags

    def _set(self, flags: _Flags) -> Node:
        """Read a set of characters behind its bracket. No operators, no classes with names: a [ is itself."""
        begin, negated = self.at, self.text.startswith("^", self.at)
        self.at += negated
        pairs, properties = list[tuple[int, int]](), list[str]()
        while not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise PatternError(f"a [ of {self.text[begin - 1 : begin + 30]!r} is not closed")
            member = self._member(negated != flags.is_wide)
            if isinstance(member, str):
                properties.append(member)
            elif isinstance(member, int):
                pairs.append((member, self._last(member)))
            else:
                pairs += member
        self.at += 1
        ranges = ranges_of(pairs)
        ranges = folded(ranges) if flags.folds else ranges
        if properties:
            return Property(ranges, tuple(properties), negated)
        return Set(inverted(ranges) if negated else ranges)

    def _last(self, first: int) -> int:
        """Read the last character of a range that may begin with this one; return this one where no range begins."""
        begin = self.at
        if not self.text.startswith("-", begin) or self.text[begin + 1 : begin + 2] in ("", "]"):
            return first
        self.at += 1
        last = self._member(False)
        if not isinstance(last, int):
            self.at = begin
            return first
        if last < first:
            raise PatternError(f"the range {chr(first)}-{chr(last)} ends before it begins")
        return last

    def _member(self, is_wide: bool) -> "int | Ranges | str":
        """Read a member of a set: the number of a character, a set, or the text of a property. is_wide: see _Flags."""
        if self.text[self.at] != "\\":
            self.at += 1
            return ord(self.text[self.at - 1])
        found = _TOKEN.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        if found["property"]:
            return found[0]
        if (escape := found["escape"]) and escape.lower() in "dws":
            return kind(escape, is_wide)
        return 8 if escape == "b" else _code(found)

    def _atom(self, found: re.Match[str], flags: _Flags) -> Node:
        """Return a character, a set that is told by one, or an edge of the text."""
        if found["plain"] in ("^", "$"):
            return Edge(found["plain"] == "^")
        if found["plain"] == ".":
            lines = letters("\n") if flags.is_wide else LINES
            return Set(ANY if flags.dot_all else without(ANY, lines))
        if found["property"]:
            return Property((), (found[0],))
        if escape := found["escape"]:
            if escape.lower() in "dws":
                return Set(kind(escape, flags.is_wide))
            if escape in "AzZ":
                return Edge(escape == "A")
        code = ord(found["plain"]) if found["plain"] else _code(found)
        ranges = ((code, code),)
        return Set(folded(ranges) if flags.folds else letters(chr(code)))


def _times(part: Node, found: re.Match[str]) -> Node:
    """Repeat a part. Few or many makes no difference to the texts that fit."""
    if isinstance(part, Edge | Look):
        raise PatternError(f"{found[0]} behind ^, $ or look-ahead is not possible")
    if found["lazy"] == "+":
        raise PatternError(f"{found[0]} is not possible: a repetition that gives nothing back")
    text = found["times"]
    if text in "*+?":
        return Times(part, int(text == "+"), 1 if text == "?" else None)
    least, comma, most = text[1:-1].partition(",")
    low, high = int(least or 0), int(most) if most else None if comma else int(least)
    if high is not None and high < low:
        raise PatternError(f"{text} has a least number above its greatest one")
    if max(low, high or 0) > MOST_TIMES:
        raise PatternError(f"{text} is more than the {MOST_TIMES:,} times that are possible")
    return Times(part, low, high)


def _code(found: re.Match[str]) -> int:
    """Return the number of a character that is written with a backslash."""
    if found["control"]:
        return ord(found["control"]) & 31
    if digits := found["hex"] or found["code"] or found["long"] or found["python"]:
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise PatternError(f"{found[0]} is no character")
        return code
    escape = found["escape"]
    if not escape:
        raise PatternError("a \\ at the end escapes nothing")
    if escape in _LETTERS:
        return _LETTERS[escape]
    if escape in "bB":
        raise PatternError(rf"\{escape} is not possible: an expression does not look back")
    if escape.isdigit() or escape == "k":
        raise PatternError(rf"\{escape} is not possible: an expression does not refer to what a group has matched")
    if escape.isascii() and escape.isalpha():
        raise PatternError(rf"\{escape} is not possible: it is no escape of ECMA-262")
    return ord(escape)
