"""The rule of a set of numbers: an expression where there is no step, rules for each remainder where there is one."""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tokenmill.text.schema.digits import decimals, exponents, integers
from tokenmill.text.schema.multiples import Multiples, TooMany
from tokenmill.text.schema.numbers import SAFE, NumberError, Numbers, strictest
from tokenmill.text.schema.rules import Alternative, Rules

MOST_LISTED = 1_000
ANY_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?/"
_LARGEST = Fraction(10**30)  # multiples beyond are not written where there is a bound
_LARGEST_STEP = 200_000  # that llguidance is given


def number_rule(numbers: Numbers, rules: Rules, json_options: dict[str, Any]) -> list[Alternative]:
    """The alternatives of a rule for these numbers; none where there is no such number."""
    if numbers.is_integer and numbers.step is not None:
        numbers &= Numbers(step=Fraction(1))
    if numbers.step is None:
        return [(f"/{text}/",) for text in _ranges(numbers)]
    low, high, step = numbers.whole_low, numbers.whole_high, numbers.step
    if not numbers.is_integer:
        low, high = _of_both(max, numbers.low, low), _of_both(min, numbers.high, high)
    low, high = (None if low is None else max(low, -_LARGEST)), (None if high is None else min(high, _LARGEST))
    if low is not None and high is not None and (high - low) / step < MOST_LISTED:
        first, last = math.ceil(low / step), math.floor(high / step)
        found = [_spellings(number * step, numbers.is_integer) for number in range(first, last + 1)]
        return [(f"/{'|'.join(found)}/",)] if found else []
    try:
        return list(Multiples(step, rules, numbers.is_integer).between(low, high))
    except TooMany:
        return [(_by_llguidance(numbers, json_options),)]


def _of_both(of: Callable[..., Fraction], bound: Fraction | None, whole: Fraction | None) -> Fraction | None:
    """A bound for what is written with a decimal point and without."""
    return bound if whole is None or abs(whole) < SAFE else strictest(of, bound, whole)


def value_text(value: Any) -> str:
    """The number that is a value of its own, as JSON: integers by their digits, others as Python writes the float."""
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < SAFE else json.dumps(value)


def _ranges(numbers: Numbers) -> list[str]:
    """Expressions for the numbers between two bounds."""
    low, high = numbers.low, numbers.high
    first, last = numbers.whole_low, numbers.whole_high
    whole = integers(None if first is None else math.ceil(first), None if last is None else math.floor(last))
    if numbers.is_integer:
        return [whole] if whole else []
    if low is None and high is None:
        return [ANY_NUMBER.strip("/")]
    return [text for text in (whole, decimals(low, high), exponents(low, high)) if text]


def _spellings(value: Fraction, is_integer: bool) -> str:
    """An expression for one number, with zeros at the end or without."""
    whole, rest = divmod(abs(value.numerator), value.denominator)
    sign = "-" if value < 0 else ""
    if not rest:
        return f"{sign}{whole}" if is_integer else rf"{sign}{whole}(?:\.0+)?"
    digits = format(Decimal(rest) / Decimal(value.denominator), "f")[1:]
    return f"{sign}{whole}\\{digits}0*"


def _by_llguidance(numbers: Numbers, json_options: dict[str, Any]) -> str:
    """The multiples of a step with more remainders than there are rules for. NumberError where it cannot do it."""
    assert numbers.step is not None
    keywords = {"minimum": numbers.whole_low, "maximum": numbers.whole_high}
    schema: dict[str, Any] = {"type": "integer" if numbers.is_integer else "number", "multipleOf": int(numbers.step)}
    is_possible = numbers.step.denominator == 1 and numbers.step <= _LARGEST_STEP
    for keyword, given in keywords.items():
        if (bound := given) is not None:
            if bound.denominator != 1 and numbers.is_integer:
                bound = Fraction(math.ceil(bound) if keyword == "minimum" else math.floor(bound))
            is_possible = is_possible and bound.denominator == 1 and abs(bound) <= SAFE
            schema[keyword] = int(bound)
    if not is_possible:
        raise NumberError(
            f"multipleOf {_told(numbers.step)} beside its bounds has more remainders than can be followed: "
            "make the step rounder, or leave out multipleOf or the bounds"
        )
    return "%json " + json.dumps({**schema, "x-guidance": json_options})


def _told(step: Fraction) -> str:
    return str(Decimal(step.numerator) / Decimal(step.denominator))
