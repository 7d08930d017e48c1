"""A Lark grammar that a user has written, before llguidance reads it: what would not hold is refused or spelled anew.

Its words are read as llguidance reads them, so that nothing inside of a text, a regular expression or a comment is a
word.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable
from collections.abc import Sequence as List
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

from tokenmill.constrain.vocabulary import Vocabulary
from tokenmill.errors import ConfigError
from tokenmill.settings.constraint import shortened
from tokenmill.text.tools.lark_rules import Token, ending

OPTIONS = ("allow_initial_skip", "ignore_once")
"""Options of %llguidance that may be set. `no_forcing` is ours to set, and a text has no bytes that are not UTF-8."""

# Each alternative matches at its first letter without going back, so that long grammars take no longer for their size.
_WORD = re.compile(
    r"""(?P<space>[ \t]+|(?://|\#)[^\n]*)
      | (?P<string>"(?:\\.?|[^"\\])*(?:"i?)?)
      | (?P<regex>/(?:\\.?|[^/\\])+(?:/[imslux]*)?)
      | (?P<tokens><\[[^<>\s]*\]>)
      | (?P<special><[^<>\s]+>)
      | (?P<name>%?[A-Za-z_][\w\-]*)
      | (?P<number>[+\-]?[0-9]+)
      | (?P<sign>\.\.|.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_TOKENS = re.compile(r"<\[[^<>\s]*\]>")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_TEXT = "/(?s:.)*/"


class Word(NamedTuple):
    """A word of a grammar. kind: the name of its group in the expression above. end: where the next one begins."""

    kind: str
    text: str
    end: int


class OwnLark:
    """A grammar that a user has written. setting: what refusals show as the value."""

    def __init__(self, text: str, setting: str) -> None:
        self.text, self._setting = text, setting

    @cached_property
    def words(self) -> list[Word]:
        """Its words, with spaces and comments."""
        found = _WORD.finditer(self.text)
        return [Word(each.lastgroup or "", each[0], each.end()) for each in found]

    def check(self) -> None:
        """Raise ConfigError where it sets what does not hold here."""
        for word in self.words if "%llguidance" in self.text else ():
            if word.text == "%llguidance" and not self._has_options(word.end):
                break
        if self._sets_temperature():
            raise ConfigError("grammar", shortened(self._setting), "rules without a temperature: it is the request's")
        rules = self._rules()
        if "start" in rules and "start" not in ending(rules):
            why = "no text with an end fits it: the rule 'start' needs itself, or a rule that does, without end"
            raise ConfigError("grammar", shortened(self._setting), why)

    def _rules(self) -> dict[str, list[Token]]:
        """Return the words of each rule that tell whether its texts have an end; none where that is not known."""
        words = [word for word in self.words if word.kind != "space" and (word.text != "\n" or word.kind != "sign")]
        found, heads = dict[str, list[Token]](), list(self._heads(words))
        for (name, _, begin), (_, end, _) in pairwise([*heads, ("", len(words), 0)]):
            if name in found or "::" in "".join(word.text for word in words[begin : begin + 3]):
                return {}
            found[name] = list(_tokens(words[begin:end]))
        return found

    @staticmethod
    def _heads(words: List[Word]) -> Iterable[tuple[str, int, int]]:
        """Yield the name of each rule and directive, its place, and the place of what it means."""
        for at, word in enumerate(words):
            if word.kind == "name" and word.text.startswith("%") and word.text not in ("%json", "%regex", "%lark"):
                yield f"{word.text} {at}", at, at + 1
            elif word.kind == "name" and (at == 0 or words[at - 1].text != "@"):
                after = at + 1
                if words[after : after + 1] and words[after].text == "[":
                    while after < len(words) and words[after].text != "]":
                        after += 1
                    after += 1
                elif words[after : after + 1] and words[after].text == ".":
                    after += 2
                if after < len(words) and words[after].text == ":":
                    yield word.text, at, after + 1

    def _has_options(self, at: int) -> bool:
        """Return whether options stand there. ConfigError for one that may not be set."""
        try:
            while self.text[at : at + 1].isspace():
                at += 1
            options, _ = json.JSONDecoder().raw_decode(self.text, at)
        except (ValueError, RecursionError):  # llguidance says what is wrong with it
            return False
        for name in options if isinstance(options, dict) else ():
            if name not in OPTIONS:
                why = f"without the option {shortened(name)} of %llguidance; there are {', '.join(OPTIONS)}"
                raise ConfigError("grammar", shortened(self._setting), why)
        return True

    def _sets_temperature(self) -> bool:
        """Return whether a rule has a temperature."""
        if re.search(r"temperature[ \t]*=", self.text) is None:  # a grammar of ours may be long, and has none
            return False
        words = [word.text for word in self.words if word.kind != "space"]
        return any(one == "temperature" and after == "=" for one, after in pairwise(words))

    def spelled(self, vocabulary: Vocabulary) -> str:
        """Write the same grammar, where a complement has no text that is not UTF-8, as llguidance's has, nor the
        text of a control token; and that a set of tokens holds none that ends a text.
        """
        is_set = any(not found[2:-2].isdecimal() for found in _TOKENS.findall(self.text))
        if not is_set and "~" not in self.text:
            return self.text
        words = (
            word._replace(text=_without_ends(word.text, vocabulary)) if word.kind == "tokens" else word
            for word in self.words
        )
        return _Complements(list(words)).all()


def _tokens(words: List[Word]) -> Iterable[Token]:
    """Yield the tokens of a rule: names of others, signs, and how often something comes; the rest has an end."""
    at = 0
    while at < len(words):
        word, before = words[at], words[at - 1].text if at else ""
        at += 1
        if word.text in ("{", "~") or (word.kind == "name" and word.text.startswith("%")):
            begin, depth = at, int(word.text == "{")
            while depth and at < len(words):
                depth += (words[at].text == "{") - (words[at].text == "}")
                at += 1
            if before in ("%json", "%regex", "%lark"):
                continue
            if word.text in ("{", "~"):
                is_zero = words[begin : begin + 1] and words[begin].text in ("0", ",")
                yield "times", "{0,}" if is_zero else "{1,}"
                at += word.text == "~"
        elif word.kind == "name":
            yield ("string", word.text) if before in ("@", ">") else ("name", word.text)
        elif word.kind == "sign":
            yield "sign", word.text
        else:
            yield "string", word.text


Runs = list[tuple[int, int]]
"""Whole numbers in their order: the first and the last of each run."""


def _without_ends(text: str, vocabulary: Vocabulary) -> str:
    """Write a set of tokens, `<[1-3,5]>` or the others, `<[^7]>`, without ends and empty tokens. One token stays."""
    inner = text[2:-2]
    try:
        given = [tuple(map(int, part.split("-"))) for part in inner.removeprefix("^").split(",") if part not in "*"]
    except ValueError:  # llguidance says what is wrong with it
        return text
    if inner.isdecimal() or any(part[-1] >= vocabulary.size or len(part) > 2 for part in given):
        return text
    named = _merged((part[0], part[-1]) for part in given)
    if inner.startswith("^") or "*" in inner:
        named = _others(named, vocabulary.size)
    left = _both(named, _of_texts(vocabulary))
    return f"<[{','.join(f'{first}-{last}' if first < last else f'{first}' for first, last in left)}]>"


@lru_cache(8)
def _of_texts(vocabulary: Vocabulary) -> Runs:
    """Return the tokens that have bytes and end no text."""
    empty = (number for number in range(vocabulary.size) if not vocabulary.spelled[number])
    return _others(_merged((number, number) for number in (*empty, *vocabulary.ends)), vocabulary.size)


def _merged(runs: Iterable[tuple[int, int]]) -> Runs:
    """Put runs that may overlap together."""
    made: Runs = []
    for first, last in sorted(run for run in runs if run[0] <= run[1]):
        if made and first <= made[-1][1] + 1:
            made[-1] = made[-1][0], max(made[-1][1], last)
        else:
            made.append((first, last))
    return made


def _others(runs: Runs, size: int) -> Runs:
    """Return the numbers below `size` that are in none of these."""
    begins, ends = [0, *(last + 1 for _, last in runs)], [*(first - 1 for first, _ in runs), size - 1]
    return [(first, min(last, size - 1)) for first, last in zip(begins, ends, strict=True) if first <= last]


def _both(ours: Runs, theirs: Runs) -> Runs:
    """Return the numbers that are in both."""
    made: Runs = []
    for first, last in ours:
        at = bisect_left(theirs, first, key=lambda run: run[1])  # the first of theirs that ends behind the beginning
        while at < len(theirs) and theirs[at][0] <= last:
            made.append((max(first, theirs[at][0]), min(last, theirs[at][1])))
            at += 1
    return made


class _Complements:
    """A speller of words, one after the other."""

    def __init__(self, words: List[Word]) -> None:
        self._words, self._at, self._made = words, 0, list[str]()

    def all(self) -> str:
        while self._at < len(self._words):
            self._one()
        return "".join(self._made)

    def _one(self) -> None:
        """Spell a word; a ~ together with its operand."""
        word = self._words[self._at]
        if word.text != "~" or word.kind != "sign":
            self._take()
            return
        self._at += 1
        if (following := self._following()) is not None and following.kind == "number":  # so often, as in a ~ 2..3
            self._made.append("~")
            return
        self._made.append(f"({_TEXT} & ~")
        self._spaces()
        self._atom()
        self._made.append(")")

    def _atom(self) -> None:
        """Spell the operand of a ~: a group, a name, a literal or a range of two."""
        if self._at >= len(self._words):
            return
        word = self._words[self._at]
        if word.text in _CLOSING:
            self._group(word.text)
        else:
            self._one()
        if word.text == "%regex":
            self._spaces()
            self._atom()
        elif word.kind == "string" and (following := self._following()) is not None and following.text == "..":
            for _ in range(2):
                self._spaces()
                if self._at < len(self._words):
                    self._one()

    def _group(self, opening: str) -> None:
        self._take()
        while self._at < len(self._words):
            text = self._words[self._at].text
            if text == _CLOSING[opening]:
                self._take()
                return
            if text in _CLOSING:
                self._group(text)
            else:
                self._one()

    def _spaces(self) -> None:
        while self._at < len(self._words) and self._words[self._at].kind == "space":
            self._take()

    def _following(self) -> Word | None:
        """Return the next word that is no space."""
        at = self._at
        while at < len(self._words) and self._words[at].kind == "space":
            at += 1
        return self._words[at] if at < len(self._words) else None

    def _take(self) -> None:
        self._made.append(self._words[self._at].text)
        self._at += 1
