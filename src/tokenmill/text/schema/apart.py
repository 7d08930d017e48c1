"""The test whether no value fits two schemas: then a `oneOf` of them says what an `anyOf` says."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from tokenmill.text.schema.merge import Case, MergeError, cases, items_of, kind_of, kinds, listed, same
from tokenmill.text.schema.numbers import KEYWORDS, Numbers, exact, numbers_of

_DEEPEST = 8  # parts inside of parts that are looked at


def is_apart(options: list[Any], root: Mapping[str, Any], *, depth: int = 0) -> bool:
    """Return whether no value fits two of these schemas, as far as types, named values, bounds, lengths, and required
    properties and items tell. References lead into the root.
    """
    try:
        found = [cases((each,), root, lenient=True) for each in options]
        return all(
            _are_apart(one, two, root, depth)
            for number, part in enumerate(found)
            for other in found[number + 1 :]
            for one in part
            for two in other
        )
    except (MergeError, TypeError, AttributeError, ValueError):  # whoever reads the schema says what is wrong with it
        return False


def _are_apart(one: Case, other: Case, root: Mapping[str, Any], depth: int) -> bool:
    (types, is_integer), (others, is_other_integer) = kinds(one), kinds(other)
    left, right = listed(one), listed(other)
    if left is not None or right is not None:
        return _named_apart(left, right, (types, is_integer), (others, is_other_integer))
    return all(
        kind not in others or _of_kind_apart(kind, one, other, root, depth, (is_integer, is_other_integer))
        for kind in types
    )


def _named_apart(
    left: list[Any] | None, right: list[Any] | None, one: tuple[list[str], bool], other: tuple[list[str], bool]
) -> bool:
    """Return whether no value that one side names, or both sides name, fits the other side."""
    if left is not None and right is not None:
        return not any(same(each, value) for each in left for value in right)
    types, is_integer = other if right is None else one
    return not any(_is_of(value, types, is_integer) for value in (left if right is None else right) or ())


def _is_of(value: Any, types: list[str], is_integer: bool) -> bool:
    kind = kind_of(value)
    return kind in types and not (kind == "number" and is_integer and exact(value, "const").denominator != 1)


def _of_kind_apart(
    kind: str, one: Case, other: Case, root: Mapping[str, Any], depth: int, are_integers: tuple[bool, bool]
) -> bool:
    both = (*one, *other)
    if kind == "number":
        numbers = Numbers(is_integer=any(are_integers))
        for each in both:
            if any(key in each for key in KEYWORDS):
                numbers &= numbers_of(each, numbers.is_integer)
        is_fraction_apart = numbers.is_integer or _is_none(numbers.low, numbers.high)
        return is_fraction_apart and _is_none(numbers.whole_low, numbers.whole_high)
    lengths = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
    if kind in lengths:
        least, most = (_given(both, key) for key in lengths[kind])
        if least and most and max(least) > min(most):
            return True
    if depth >= _DEEPEST:
        return False
    if kind == "object":
        return _objects_apart(one, other, root, depth)
    return kind == "array" and _arrays_apart(both, one, other, root, depth)


def _is_none(low: Fraction | None, high: Fraction | None) -> bool:
    return low is not None and high is not None and low > high


def _given(case: Case, key: str) -> list[int]:
    return [each[key] for each in case if isinstance(each.get(key), int)]


def _objects_apart(one: Case, other: Case, root: Mapping[str, Any], depth: int) -> bool:
    """Return whether a required property is impossible on the other side, or is another value there."""
    names = {*_required(one), *_required(other)}
    if any(_is_forbidden(case, name) for name in names for case in (one, other)):
        return True
    return any(is_apart([_all(one, name), _all(other, name)], root, depth=depth + 1) for name in names)


def _arrays_apart(both: Case, one: Case, other: Case, root: Mapping[str, Any], depth: int) -> bool:
    """Return whether an item that both sides require is another value on each."""
    least = max(_given(both, "minItems"), default=0)
    return any(
        is_apart([{"allOf": _items(case, at)} for case in (one, other)], root, depth=depth + 1)
        for at in range(min(least, _DEEPEST))
    )


def _items(case: Case, at: int) -> list[Any]:
    return [first[at] if at < len(first) else rest for first, rest in map(items_of, case)]


def _required(case: Case) -> Iterator[str]:
    for each in case:
        yield from each.get("required") or ()


def _is_forbidden(case: Case, name: str) -> bool:
    return any(
        each.get("additionalProperties") is False
        and name not in (each.get("properties") or {})
        and not each.get("patternProperties")
        for each in case
    )


def _all(case: Case, name: str) -> dict[str, Any]:
    """Return a schema of what a case says about a property by its name."""
    found = [each["properties"][name] for each in case if name in (each.get("properties") or {})]
    return {"allOf": found}
