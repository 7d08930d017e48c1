"""The rules of objects: properties in the schema's order, and others behind them, counted where that matters, with
terminals for the names of properties that a schema does not name.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tokenmill.text.schema.charset import ANY, Ranges, letters, quoted, ranges_of, without
from tokenmill.text.schema.expression import Chain, Node, OneOf, Times
from tokenmill.text.schema.merge import Case, MergeError
from tokenmill.text.schema.pattern import anywhere, in_json, matches
from tokenmill.text.schema.rules import Alternative, Rules, json_text, literal

MOST_COUNTED = 1_000
MOST_DIFFERENT = 3
NAME = f'/"(?:{quoted(ANY)})*"/'
_PROBES = ("key", "Zq", "7", "_x", "é-ü", "a b", "x.y", "$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
_BUCKETS = {2: 8, 3: 4}
"""How many names must differ → by how many sets of first and last letters they are told apart."""

ValueRule = Callable[[tuple[Any, ...]], str]
"""Makes the rule of a value for which schemas hold together."""


@dataclass
class Object:
    """The schemas of an object's properties: of named ones, and of others by the terminal of their names.

    is_open: names that fit no pattern are possible.
    """

    named: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    others: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    least: int = 0
    most: int | None = None
    is_open: bool = False


def object_of(case: Case) -> Object:
    """Read what the schemas of a case say together about objects."""
    made = Object()
    for each in case:
        made.required.update(name for name in each.get("required") or () if isinstance(name, str))
        made.least = max(made.least, int(each.get("minProperties", 0)))
        if (most := each.get("maxProperties")) is not None:
            made.most = int(most) if made.most is None else min(made.most, int(most))
    names = dict.fromkeys(name for each in case for name in each.get("properties") or ())
    for name in [*names, *(name for each in case for name in each.get("required") or () if name not in names)]:
        made.named[name] = tuple(schema for each in case for schema in _of_name(each, name))
    patterns = list(dict.fromkeys(text for each in case for text in each.get("patternProperties") or ()))
    for pattern in patterns:
        if terminal := _of_pattern(pattern, made.named, [text for text in patterns if text != pattern]):
            schemas = [(each.get("patternProperties") or {}, each.get("additionalProperties", True)) for each in case]
            made.others.append((terminal, tuple(inner.get(pattern, rest) for inner, rest in schemas)))
    if (terminal := _of_others(made.named, patterns)) and not any(
        each.get("additionalProperties") is False for each in case
    ):
        made.is_open = True
        made.others.append((terminal, tuple(each.get("additionalProperties", True) for each in case)))
    return made


def _of_name(schema: Mapping[str, Any], name: str) -> list[Any]:
    """Return the schemas that one schema has for the property of a name."""
    properties, patterns = schema.get("properties") or {}, schema.get("patternProperties") or {}
    found = [properties[name]] if name in properties else []
    found += [each for pattern, each in patterns.items() if matches(pattern, name)]
    return found or [schema.get("additionalProperties", True)]


class ObjectRules:
    """A maker of the rules of one object."""

    def __init__(self, it: Object, rules: Rules, value: ValueRule, item_separator: str, key_separator: str) -> None:
        self._it, self._rules, self._value = it, rules, value
        self._comma, self._colon = literal(item_separator), literal(key_separator)
        self._others = [(name, value(schemas)) for name, schemas in it.others if False not in schemas]
        self._counted = it.least if it.most is None else max(it.least, it.most + 1)
        if self._counted > MOST_COUNTED:
            raise MergeError(f"minProperties and maxProperties are at most {MOST_COUNTED:,} here")
        self._made: dict[tuple[int, int, bool], str] = {}

    def whole(self) -> Alternative:
        """Return the alternative of a rule for the object."""
        names = list(self._it.named)
        for number in range(len(names), -1, -1):  # from behind, so that rules refer to rules that are there
            for count in range(min(number, self._counted) + 1):
                for is_first in (True, False):
                    self._made[number, count, is_first] = self._behind(names, number, count, is_first)
        return ('"{"', self._made[0, 0, True])

    def _behind(self, names: list[str], number: int, count: int, is_first: bool) -> str:
        """Return the rule for what comes behind a number of names, of which a count was written."""
        if number == len(names):
            return self._last(count, is_first)
        name = names[number]
        item = (literal(json_text(name)), self._colon, self._value(self._it.named[name]))
        counted = min(count + 1, self._counted)
        comma = () if is_first else (self._comma,)
        made: list[Alternative] = [(*comma, *item, self._made[number + 1, counted, False])]
        if name not in self._it.required:
            made.append((self._made[number + 1, count, is_first],))
        return self._rules.rule(made)

    def _last(self, count: int, is_first: bool) -> str:
        """Return the rule for other properties and the end."""
        needed = max(0, self._it.least - count)
        most = None if self._it.most is None else self._it.most - count
        if most is not None and most < needed:
            return self._rules.rule([])
        return self._different(needed, is_first, most) if needed > 1 else self._others_and_end(needed, is_first, most)

    def _others_and_end(self, needed: int, is_first: bool, most: int | None) -> str:
        """Return the rule for other properties, at least as many as are needed, 0 or 1, up to a number, and the end."""
        end: list[Alternative] = [('"}"',)]
        if most is None:
            loop = self._rules.name()
            self._rules.rule([*end, *self._items(False, loop)], loop)
        else:
            loop = self._rules.rule(end)
            for _ in range(most - 1):
                loop = self._rules.rule([*end, *self._items(False, loop)])
        return self._rules.rule([*([] if needed else end), *([] if most == 0 else self._items(is_first, loop))])

    def _items(self, is_first: bool, behind: str, which: str = "") -> list[Alternative]:
        """Return the alternatives of one more property, whose name fits `which`, and what is behind it."""
        comma = () if is_first else (self._comma,)
        return [
            (*comma, self._rules.terminal(f"({name}) & {which}" if which else name), self._colon, rule, behind)
            for name, rule in self._others
        ]

    def _different(self, needed: int, is_first: bool, most: int | None) -> str:
        """Return the rule for as many others as are needed, whose names differ: a name that is there already counts
        once. They are told apart by their first and last letters.
        """
        if not self._others:
            return self._rules.rule([])
        if needed > MOST_DIFFERENT or not self._it.is_open:
            raise MergeError(
                f"minProperties asks for {needed} properties that have no name in the schema; that their names differ "
                f"is seen to for {MOST_DIFFERENT}, and not where patternProperties alone say what names are possible"
            )
        behind = self._others_and_end(0, False, None if most is None else most - needed)
        return self._apart(_classes(needed), frozenset(), needed, is_first, behind, {}, may_repeat=most is None)

    def _apart(
        self,
        divided: list[str],
        seen: frozenset[int],
        needed: int,
        is_first: bool,
        behind: str,
        known: dict[frozenset[int], str],
        *,
        may_repeat: bool,
    ) -> str:
        """Return the rule for names of classes that were not seen yet; may_repeat: and of classes that were."""
        if len(seen) == needed:
            return behind
        if seen not in known:
            known[seen] = self._rules.name()
            made = list[Alternative]()
            for number, each in enumerate(divided):
                if number not in seen or may_repeat:
                    later = self._apart(divided, seen | {number}, needed, False, behind, known, may_repeat=may_repeat)
                    made += self._items(is_first, later, each)
            self._rules.rule(made, known[seen])
        return known[seen]


def _of_pattern(pattern: str, named: Collection[str], others: Collection[str]) -> str:
    """Return a terminal for names that fit a pattern and no other; empty where only `named` ones might be left."""
    node = anywhere(pattern)
    if any(matches(pattern, name) for name in named) and not _is_endless(node):
        return ""
    if not any(matches(pattern, name) and name not in named for name in _PROBES) and any(
        matches(other, name) for other in others for name in _PROBES
    ):
        return ""
    return _but(f'/"(?:{in_json(node)})"/', [name for name in named if matches(pattern, name)], others)


def _of_others(named: Collection[str], patterns: Collection[str]) -> str:
    """Return a terminal for names that are not `named` and fit no pattern; empty where patterns leave no name."""
    if all(any(matches(pattern, name) for pattern in patterns) for name in _PROBES):
        return ""
    return _but(NAME, named, patterns)


def _classes(number: int) -> list[str]:
    """Return terminals that divide names by their first and last letters, so that 2 or 3 names can be told apart."""
    sets = _buckets(_BUCKETS[number])
    made = []
    for (at, first), (end, last) in product(enumerate(sets), repeat=2):
        rest = f"(?:(?:{quoted(ANY)})*{last})" + ("?" if at == end else "")
        made.append(f'/"{first}{rest}"/')
    return made


def _buckets(number: int) -> list[str]:
    codes = [code for code in range(0x20, 0x7F) if code not in b'"\\']
    sets: list[Ranges] = [ranges_of((code, code) for code in codes if code % number == each) for each in range(number)]
    sets[0] = ranges_of((*sets[0], *without(ANY, ranges_of((code, code) for code in codes))))
    return [f"(?:{quoted(each)})" for each in sets]


def _but(terminal: str, named: Collection[str], patterns: Collection[str]) -> str:
    taken = ["".join(quoted(letters(each)) for each in name) for name in named] + [
        in_json(anywhere(each)) for each in patterns
    ]
    return f'{terminal} & ~/"(?:{"|".join(taken)})"/' if taken else terminal


def _is_endless(node: Node) -> bool:
    """Return whether endlessly many names fit, so that some are not named."""
    if isinstance(node, Times):
        return node.most is None or _is_endless(node.part)
    return isinstance(node, Chain | OneOf) and any(map(_is_endless, node.parts))
