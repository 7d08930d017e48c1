"""Lists of items that all differ, where the values are few: the rules remember which of them were written.

Up to 8 values come in any order. More of them come in the order in which the schema names them: only values behind the
last item are possible.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from tokenmill.text.schema.merge import Case, MergeError, cases, kind_of, kinds, listed, same
from tokenmill.text.schema.numbers import KEYWORDS, Numbers, numbers_of
from tokenmill.text.schema.rules import Alternative, Rules

MOST_IN_ANY_ORDER = 8
MOST_IN_ORDER = 200
_MOST_STATES = 5_000
_ABOUT_LISTS = ("prefixItems", "additionalItems", "contains", "allOf", "anyOf", "oneOf", "$ref")
_OF_VALUES = frozenset(("type", "const", "enum", "title", "description", "default", "examples", "$schema", "format"))


def values_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any] | None:
    """Return the values of items of a list that must differ, if they are few; None where they are not, or not known."""
    items = schema.get("items")
    if not isinstance(items, Mapping) or any(key in schema for key in _ABOUT_LISTS):
        return None
    try:
        parts = [_of_case(case) for case in cases((items,), root, lenient=True)]
        counted = max(int(schema.get("minItems", 0)), int(schema.get("maxItems", -1)) + 1)
    except (ValueError, TypeError, AttributeError):  # whoever reads the schema says what is wrong with it
        return None
    found = list[Any]()
    for each in parts:
        if each is None:
            return None
        found += [value for value in each if not any(same(value, other) for other in found)]
        if len(found) > MOST_IN_ORDER or len(found) * (counted + 1) > _MOST_STATES:
            return None
    return found


def _of_case(case: Case) -> list[Any] | None:
    types, is_integer = kinds(case)
    if (named := listed(case)) is not None:
        is_alone = all(_OF_VALUES.issuperset(_said(each)) for each in case) and not is_integer
        return [value for value in named if kind_of(value) in types] if is_alone else None
    if not set(types) - {"boolean", "null"}:
        return [*([False, True] if "boolean" in types else []), *([None] if "null" in types else [])]
    if types != ["number"] or not is_integer:
        return None
    numbers = Numbers(is_integer=True)
    for each in case:
        if any(key in each for key in KEYWORDS):
            numbers &= numbers_of(each, True)
    low, high = numbers.whole_low, numbers.whole_high
    if low is None or high is None or high - low > MOST_IN_ORDER * (numbers.step or 1):
        return None
    return [number for number in range(int(low), int(high) + 1) if numbers.holds(Fraction(number))]


def _said(schema: Mapping[str, Any]) -> set[str]:
    """Return the keywords of a schema that `cases` has not read, without names of parts."""
    return set(schema) - {"allOf", "anyOf", "oneOf", "$ref", "$defs", "definitions", "$comment"}


class UniqueRules:
    """A maker of the rules of one list. items: the rule of each value; each value comes at most once."""

    def __init__(self, rules: Rules, items: Sequence[str], comma: str, least: int, most: int | None) -> None:
        self._rules, self._items, self._comma = rules, items, comma
        self._least, self._most = least, len(items) if most is None else min(most, len(items))
        self._made: dict[int, str] = {}

    def whole(self) -> Alternative:
        """Return the alternative of a rule for the list."""
        return ('"["', self._any_order(0) if len(self._items) <= MOST_IN_ANY_ORDER else self._in_order())

    def _any_order(self, used: int) -> str:
        """Return the rule for what comes after some items. used: these, as bits."""
        if used not in self._made:
            count = used.bit_count()
            made: list[Alternative] = [('"]"',)] if count >= self._least else []
            if count < self._most:
                comma = (self._comma,) if count else ()
                left = (at for at in range(len(self._items)) if not used >> at & 1)
                made += [(*comma, self._items[at], self._any_order(used | 1 << at)) for at in left]
            self._made[used] = self._rules.rule(made)
        return self._made[used]

    def _in_order(self) -> str:
        """Return the rule of the list, made from its end: each item is there or passed over, and counted."""
        number = len(self._items)
        counted = max(1, self._least, self._most + 1 if self._most < number else 0)
        behind = [self._rules.rule([('"]"',)] if self._fits(count) else []) for count in range(counted + 1)]
        for at in range(number - 1, -1, -1):
            behind = [
                self._rules.rule(
                    [
                        (*((self._comma,) if count else ()), self._items[at], behind[min(count + 1, counted)]),
                        (behind[count],),
                    ]
                )
                for count in range(min(at, counted) + 1)
            ] + behind[min(at, counted) + 1 :]
        return behind[0]

    def _fits(self, count: int) -> bool:
        return self._least <= count and (count <= self._most or self._most == len(self._items))


def differing(about: Case, root: Mapping[str, Any], *, is_lenient: bool) -> list[Any] | None:
    """Return the values of items where schemas of a list say that these differ; None where no schema says so.
    MergeError where the values are not few, unless that is passed over.
    """
    asking = [each for each in about if each.get("uniqueItems") is True]
    if not asking:
        return None
    found = next((values for each in asking if (values := values_of(each, root)) is not None), None)
    if found is None and not is_lenient:
        raise MergeError("the keyword 'uniqueItems' is implemented where the items have few values, as of an enum")
    return found
