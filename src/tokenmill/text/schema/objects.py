"""The rules of objects: properties in the schema's order, and others behind them, counted where their number matters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenmill.text.schema.keys import classes, of_others, of_pattern
from tokenmill.text.schema.merge import Case, MergeError
from tokenmill.text.schema.pattern import matches
from tokenmill.text.schema.rules import Alternative, Rules, json_text, literal

MOST_COUNTED = 1_000
_MOST_DIFFERENT = 3

ValueRule = Callable[[tuple[Any, ...]], str]
"""Makes the rule of a value for which schemas hold together."""


@dataclass
class Object:
    """The schemas of an object's properties: of named ones, and of others by the terminal of their names."""

    named: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    others: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    least: int = 0
    most: int | None = None


def object_of(case: Case) -> Object:
    """What the schemas of a case say together about objects."""
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
        if terminal := of_pattern(pattern, made.named, [text for text in patterns if text != pattern]):
            made.others.append((terminal, tuple(_of_pattern(each, pattern) for each in case)))
    if terminal := of_others(made.named, patterns):
        made.others.append((terminal, tuple(each.get("additionalProperties", True) for each in case)))
    return made


def _of_name(schema: Mapping[str, Any], name: str) -> list[Any]:
    """What one schema says about the property of a name."""
    properties, patterns = schema.get("properties") or {}, schema.get("patternProperties") or {}
    found = [properties[name]] if name in properties else []
    found += [each for pattern, each in patterns.items() if matches(pattern, name)]
    return found or [schema.get("additionalProperties", True)]


def _of_pattern(schema: Mapping[str, Any], pattern: str) -> Any:
    patterns = schema.get("patternProperties") or {}
    return patterns[pattern] if pattern in patterns else schema.get("additionalProperties", True)


class ObjectRules:
    """Makes the rules of one object."""

    def __init__(self, it: Object, rules: Rules, value: ValueRule, item_separator: str, key_separator: str) -> None:
        self._it, self._rules, self._value = it, rules, value
        self._comma, self._colon = literal(item_separator), literal(key_separator)
        self._others = [(name, self._rule_of(schemas)) for name, schemas in it.others if False not in schemas]
        self._counted = it.least if it.most is None else max(it.least, it.most + 1)
        if self._counted > MOST_COUNTED:
            raise MergeError(f"minProperties and maxProperties are at most {MOST_COUNTED:,} here")
        self._made: dict[tuple[int, int, bool], str] = {}

    def whole(self) -> Alternative:
        """The alternative of a rule for the object."""
        names = list(self._it.named)
        for number in range(len(names), -1, -1):  # from behind, so that rules refer to those that are there
            for count in range(min(number, self._counted) + 1):
                for is_first in (True, False):
                    self._made[number, count, is_first] = self._behind(names, number, count, is_first)
        return ('"{"', self._made[0, 0, True])

    def _rule_of(self, schemas: tuple[Any, ...]) -> str:
        return self._value(schemas)

    def _behind(self, names: list[str], number: int, count: int, is_first: bool) -> str:
        """The rule for what comes where a number of names has passed, of which a count was written."""
        if number == len(names):
            return self._last(count, is_first)
        name = names[number]
        item = (literal(json_text(name)), self._colon, self._rule_of(self._it.named[name]))
        counted = min(count + 1, self._counted)
        comma = () if is_first else (self._comma,)
        made: list[Alternative] = [(*comma, *item, self._made[number + 1, counted, False])]
        if name not in self._it.required:
            made.append((self._made[number + 1, count, is_first],))
        return self._rules.rule(made)

    def _last(self, count: int, is_first: bool) -> str:
        """The rule for other properties and the end."""
        most = None if self._it.most is None else self._it.most - count
        if most is not None and most < 0:
            return self._rules.rule([])
        needed = max(0, self._it.least - count)
        if needed > 1:
            return self._different(needed, is_first, most)
        if most is None:
            loop = self._rules.name()
            self._rules.rule([('"}"',), *((self._comma, *item, loop) for item in self._items())], loop)
        else:
            loop = self._rules.rule([('"}"',)])
            for _ in range(most - 1):
                loop = self._rules.rule([('"}"',), *((self._comma, *item, loop) for item in self._items())])
        comma = () if is_first else (self._comma,)
        begun = [] if most == 0 else [(*comma, *item, loop) for item in self._items()]
        return self._rules.rule([*([] if needed else [('"}"',)]), *begun])

    def _items(self) -> list[Alternative]:
        return [(self._terminal(name), self._colon, rule) for name, rule in self._others]

    def _terminal(self, expression: str) -> str:
        return self._rules.terminal(expression)

    def _different(self, needed: int, is_first: bool, most: int | None) -> str:
        """The rule for as many other properties as are needed, whose names differ: a name that is there already counts
        once. They are told apart by their first and last letters.
        """
        if needed > _MOST_DIFFERENT or most is not None or len(self._others) > 1:
            raise MergeError(
                f"minProperties asks for {needed} properties that have no name in the schema: "
                f"that their names differ can be seen to for {_MOST_DIFFERENT}, without patternProperties or maxProperties"
            )
        if not self._others:
            return self._rules.rule([])
        (key, value), comma = self._others[0], (self._comma,)
        anything = self._last(self._it.least, False)
        divided = [tuple(map(self._terminal, each)) for each in classes(needed, key)]
        item = (self._colon, value)
        if needed == 2:
            return self._first_of_two(divided, item, is_first, anything)
        made = list[Alternative]()
        for number, (own, _) in enumerate(divided):
            second = self._rules.name()
            later = list[Alternative]([(*comma, own, *item, second)])
            for at, (other, _) in enumerate(divided):
                if at != number:
                    third = self._rules.name()
                    both = [(*comma, each, *item, third) for each in (own, other)]
                    rest = [(*comma, each, *item, anything) for to, (each, _) in enumerate(divided) if to not in (number, at)]
                    self._rules.rule([*both, *rest], third)
                    later.append((*comma, other, *item, third))
            self._rules.rule(later, second)
            made.append((*(() if is_first else comma), own, *item, second))
        return self._rules.rule(made)

    def _first_of_two(self, divided: list[tuple[str, ...]], item: Alternative, is_first: bool, anything: str) -> str:
        """The rule where two names must differ."""
        made = list[Alternative]()
        for own, others in divided:
            second = self._rules.name()
            self._rules.rule([(self._comma, own, *item, second), (self._comma, others, *item, anything)], second)
            made.append((*(() if is_first else (self._comma,)), own, *item, second))
        return self._rules.rule(made)
