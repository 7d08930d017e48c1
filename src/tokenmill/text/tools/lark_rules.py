"""A Lark grammar that refers to itself, as rules for llguidance whose text stands inside a JSON string.

Rules that do not lead back to themselves become expressions, as in lark_pattern.py. In each of these a character that
JSON escapes is replaced by its escape, so that the rules around them stay as they are.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter

from tokenmill.text.tools.functions import Function
from tokenmill.text.tools.lark import Lark, escaped, quoted
from tokenmill.text.tools.lark_pattern import MAX_PATTERN, Pattern, pattern_of_text, rules_of, times_of, tokens_of

Token = tuple[str, str]
MAX_RULES = 200  # that refer to themselves
SPECIAL = [*map(chr, range(32)), '"', "\\"]  # characters that JSON escapes
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_ANCHORS = "bBAzZ"
_ATOM = re.compile(
    r"""(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])
      | \\(?:x(?P<hex>[0-9A-Fa-f]{2})|u(?P<long>[0-9A-Fa-f]{4})|(?P<kind>[dDwWsS])|(?P<letter>[^pPxu]))
      | (?P<open>\((?:\?(?P<flags>[a-z]*)(?:-[a-z]+)?:?)?)
      | (?P<sign>[)|?*+^$]|\{\d*,?\d*\})
      | (?P<dot>\.)
      | (?P<plain>[^\\])""",
    re.VERBOSE | re.DOTALL,
)


def arguments_of(lark: Lark, function: Function, name: str) -> str:
    """Return an expression for a function's arguments as a JSON object."""
    if function.lark is None:
        return lark.json(f"{name}_arguments", function.schema, function.strict)
    begin, end = quoted('{"input": "'), quoted('"}')
    return f"{begin} {text_in_json(lark, function.lark, name)} {end}"


def text_in_json(lark: Lark, grammar: str, name: str) -> str:
    """Return an expression for a text of the grammar inside a JSON string; names of its rules begin with `name`.

    ValueError, in words, for a grammar that is wrong, or that no text with an end fits.
    """
    given = rules_of(grammar)
    rules = {each: list(tokens_of(text)) for each, text in given.items()}
    plain = set(in_order({each: [text for kind, text in tokens if kind == "name"] for each, tokens in rules.items()}))
    cyclic = [each for each in rules if each not in plain]
    if len(cyclic) > MAX_RULES:
        raise ValueError(f"{len(cyclic)} of its rules refer to themselves; {MAX_RULES} are possible")
    if "start" not in ending({each: rules[each] for each in cyclic}):
        raise ValueError("it has no text with an end: a rule needs itself")
    return _Rules(lark, given, cyclic, name).of_rule("start")


def in_order(uses: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the rules that do not lead to rules which refer to themselves: each behind the rules that it refers to."""
    sorter = TopologicalSorter({name: [each for each in used if each in uses] for name, used in uses.items()})
    found = list[str]()
    with suppress(CycleError):  # it goes on up to the rules of a cycle
        sorter.prepare()
    while ready := sorter.get_ready():
        found += ready
        sorter.done(*ready)
    return found


def ending(rules: dict[str, list[Token]]) -> set[str]:
    """Return the rules that some text with an end fits."""
    users: dict[str, list[str]] = {}
    for name, tokens in rules.items():
        for each in {text for kind, text in tokens if kind == "name"}:
            users.setdefault(each, []).append(name)
    endless, waiting = set(rules), list(reversed(rules))
    while waiting:
        if (name := waiting.pop()) in endless and _Ending(rules[name], endless).choice():
            endless.discard(name)
            waiting += users.get(name, ())
    return rules.keys() - endless


class _Ending:
    """The question whether a part of a rule has an end, if these `endless` rules have none."""

    def __init__(self, tokens: list[Token], endless: Collection[str]) -> None:
        self._tokens, self._endless, self._at = tokens, endless, 0

    def choice(self) -> bool:
        """Read the parts up to the bracket that ends them, or to the end; return whether they have an end."""
        ends = [True]
        while self._at < len(self._tokens):
            kind, text = self._tokens[self._at]
            self._at += 1
            if text in (")", "]") and kind == "sign":
                break
            if text == "|" and kind == "sign":
                ends.append(True)
                continue
            one = text not in self._endless if kind == "name" else True
            if kind == "sign" and text in "([":
                one = self.choice() or text == "["
            following = self._tokens[self._at] if self._at < len(self._tokens) else ("", "")
            may_lack = following[1] in ("?", "*") or (following[0] == "times" and times_of(following[1])[1] == "0")
            ends[-1] &= one or may_lack
        return any(ends)


class _Rules:
    """The rules of a grammar as they are added."""

    def __init__(self, lark: Lark, rules: dict[str, str], cyclic: list[str], name: str) -> None:
        self._lark, self._given, self._cyclic, self._name = lark, rules, cyclic, name
        self._pattern, self._size = Pattern(rules), 0
        self._words: dict[str, str] = {}  # pattern → name of its terminal
        self._made: dict[str, str] = {}  # rule → its name here

    def of_rule(self, rule: str) -> str:
        """Return an expression for a rule."""
        if rule not in self._cyclic:
            return self._word(self._pattern.of_rule(rule))
        if rule not in self._made:
            self._made[rule] = name = f"{self._name}_rule_{len(self._made)}"
            self._lark.rule(name, " ".join(self._parts(list(tokens_of(self._given[rule])))))
        return self._made[rule]

    def _parts(self, tokens: list[Token]) -> Iterator[str]:
        at = 0
        while at < len(tokens):
            kind, text = tokens[at]
            at += 1
            if kind == "name":
                yield self.of_rule(text)
            elif kind == "string" and at < len(tokens) and tokens[at][0] == "range":
                yield self._word(pattern_of_text(f"{text}..{tokens[at + 1][1] if at + 1 < len(tokens) else ''}"))
                at += 2
            elif kind in ("string", "regex"):
                yield self._word(pattern_of_text(text))
            elif kind == "times":
                yield times_of(text)
            elif kind == "sign":
                yield {"[": "(", "]": ")?"}.get(text, text)

    def _word(self, pattern: str) -> str:
        if pattern not in self._words:
            name = f"{self._name.upper()}_WORD_{len(self._words)}"
            made = in_json(pattern)
            self._size += len(made)
            if self._size > MAX_PATTERN:
                raise ValueError(f"written out it has more than {MAX_PATTERN:,} characters")
            self._words[pattern] = self._lark.rule(name, f"/{made}/")
        return self._words[pattern]


def in_json(pattern: str) -> str:
    """Write an expression for a text that fits this one, inside a JSON string. ValueError for an unknown part."""
    made, at, dots = [], 0, [False]  # whether a dot is a line break too, for each group that is open
    while at < len(pattern):
        if (found := _ATOM.match(pattern, at)) is None:
            raise ValueError(f"{pattern[at : at + 20]!r} is not possible in a grammar that refers to itself")
        at = found.end()
        if found["open"]:
            dots.append(dots[-1] or "s" in (found["flags"] or ""))
        elif found[0] == ")" and len(dots) > 1:
            dots.pop()
        made.append(_in_json(found, dots[-1]))
    return "".join(made)


def _in_json(atom: re.Match[str], is_any: bool) -> str:
    text = atom[0]
    if atom["open"] or atom["sign"] or (atom["letter"] and atom["letter"] in _ANCHORS):
        return text
    if atom["set"] or atom["kind"] or atom["dot"]:
        return _set(r"[\s\S]" if atom["dot"] and is_any else r"[^\n]" if atom["dot"] else text)
    if code := atom["hex"] or atom["long"]:
        return _character(chr(int(code, 16)))
    if (letter := atom["letter"]) and letter.isalnum() and letter not in _LETTERS:
        raise ValueError(f"{text!r} is not possible in a grammar that refers to itself")
    return _character(atom["plain"] or _LETTERS.get(letter, letter))


def _character(letter: str) -> str:
    # An escape is spelled in one way, also where the letters of an expression may be of either case.
    return f"(?-i:{escaped(json.dumps(letter)[1:-1])})" if letter in SPECIAL else escaped(letter)


@lru_cache(1024)
def _set(text: str) -> str:
    """Write one character of a set."""
    if re.search(r"\[|&&|--|~~", re.sub(r"\\.", "", text[1:])):  # llguidance reads these otherwise than Python
        raise ValueError(f"the set {text!r} is not possible in a grammar that refers to itself: escape what is in it")
    try:
        known = re.compile(text, re.ASCII)
    except re.error as error:
        raise ValueError(f"{text!r}: {error}") from None
    found = [letter for letter in SPECIAL if known.fullmatch(letter)]
    text = re.sub(r"(\\.)|/", lambda part: part[1] or r"\/", text)
    if not found:
        return text
    others = "|".join(escaped(json.dumps(letter)[1:-1]) for letter in found)
    return f'(?:[{text}&&[^"\\\\\\x00-\\x1f]]|(?-i:{others}))'
