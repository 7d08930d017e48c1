"""The numbers that a schema admits, exactly: bounds, steps and values are fractions, never floats.

A bound that excludes itself becomes the nearest float beyond it, which is included: a text of more digits would be read
as the bound itself. Values and bounds are what JSON's decimal digits say.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
SAFE = 2**53
"""From here on llguidance, which reads bounds as floats, rounds integers."""
MOST_STEP = 3_000
"""Larger steps take llguidance long: it follows each remainder before the first mask."""


class NumberError(ValueError):
    """A keyword of numbers has a value that is refused."""


@dataclass(frozen=True)
class Numbers:
    """A set of numbers: from low to high, multiples of step; None: no such demand.

    is_integer: written without a decimal point. whole_low, whole_high: the bounds of numbers written so, where a bound
    is a float: readers compare an integer with that exactly, and others by what float they are.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    step: Fraction | None = None
    is_integer: bool = False
    whole_low: Fraction | None = None
    whole_high: Fraction | None = None

    def __and__(self, other: "Numbers") -> "Numbers":
        steps = [each for each in (self.step, other.step) if each is not None]
        return Numbers(
            strictest(max, self.low, other.low),
            strictest(min, self.high, other.high),
            _common(*steps) if len(steps) == 2 else steps[0] if steps else None,
            self.is_integer or other.is_integer,
            strictest(max, self.whole_low, other.whole_low),
            strictest(min, self.whole_high, other.whole_high),
        )

    def holds(self, value: Fraction) -> bool:
        """Return whether a number is one of these."""
        is_whole = value.denominator == 1
        low, high = (self.whole_low, self.whole_high) if is_whole else (self.low, self.high)
        return (
            (low is None or value >= low)
            and (high is None or value <= high)
            and (self.step is None or (value / self.step).denominator == 1)
            and (is_whole or not self.is_integer)
        )


def exact(value: Any, keyword: str) -> Fraction:
    """Return the number that a keyword has; NumberError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise NumberError(f"{keyword} is no number: {value!r:.50}")
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def numbers_of(schema: Mapping[str, Any], is_integer: bool) -> Numbers:
    """Read a schema's keywords about integers, or about numbers. NumberError for a value that one cannot have."""
    low = _bound(schema, "minimum", "exclusiveMinimum", 1, is_integer)
    high = _bound(schema, "maximum", "exclusiveMaximum", -1, is_integer)
    step = None
    if (given := schema.get("multipleOf")) is not None:
        step = abs(exact(given, "multipleOf"))
        if not step:
            raise NumberError("multipleOf is 0, and only 0 is a multiple of it")
    return Numbers(low[0], high[0], step, is_integer, low[1], high[1])


def strictest(of: Callable[..., Fraction], *bounds: Fraction | None) -> Fraction | None:
    """Return the highest or the lowest of several bounds, as far as they are there."""
    known = [each for each in bounds if each is not None]
    return of(known) if known else None


def _bound(
    schema: Mapping[str, Any], keyword: str, excluding: str, towards: int, whole: bool
) -> tuple[Fraction | None, Fraction | None]:
    """Return the bound of two keywords, and the one of integers. In draft 4 the excluding one is true or false."""
    found = list[tuple[Fraction, Fraction]]()
    value, other = schema.get(keyword), schema.get(excluding)
    if value is not None and other is not True and not _is_open(value, towards):
        found.append(_readings(value, keyword, towards))
    other = value if other is True else None if other is False else other
    if other is not None and not _is_open(other, towards):
        found.append(_behind(other, excluding, towards, whole))
    of = max if towards > 0 else min
    return strictest(of, *(each for each, _ in found)), strictest(of, *(each for _, each in found))


def _readings(value: Any, keyword: str, towards: int) -> tuple[Fraction, Fraction]:
    """Return a bound for numbers that are read as floats, and one for integers. From 2**53 on they differ: a bound that
    is an integer may lie between two floats, and one that is a float is another number than its digits.
    """
    found, of = exact(value, keyword), max if towards > 0 else min
    if abs(found) < SAFE:
        return found, found
    if isinstance(value, float):
        return found, of(found, Fraction(value))
    try:
        near = float(value)
        is_within = of(Fraction(near), found) == near
        return Fraction(near if is_within else math.nextafter(near, math.inf * towards)), found
    except OverflowError:
        return found, found


def _is_open(value: Any, towards: int) -> bool:
    """Return whether a bound is one that every number keeps, such as 1e999 for a maximum."""
    return isinstance(value, float) and math.isinf(value) and (value > 0) == (towards < 0)


def _behind(value: Any, keyword: str, towards: int, whole: bool) -> tuple[Fraction, Fraction]:
    """Return the first numbers behind a bound, in both readings."""
    bound, of_integers = _readings(value, keyword, towards)
    next_one = Fraction(math.floor(of_integers) + 1 if towards > 0 else math.ceil(of_integers) - 1)
    if whole:
        return next_one, next_one
    try:
        return exact(math.nextafter(float(value), math.inf * towards), keyword), next_one
    except (OverflowError, NumberError):  # of an integer that no float holds
        return bound + towards, next_one


def _common(one: Fraction, other: Fraction) -> Fraction:
    """Return the least step that both divide."""
    return Fraction(
        math.lcm(one.numerator * other.denominator, other.numerator * one.denominator),
        one.denominator * other.denominator,
    )


def _is_finite(value: float) -> bool:
    """Return whether a number is finite, as integers beyond 10^308 are, which no float holds."""
    return isinstance(value, int) or math.isfinite(value)


def is_plain(schema: Mapping[str, Any]) -> bool:
    """Return whether llguidance reads the numbers of a schema as they are: whole included bounds, short steps."""
    for keyword in KEYWORDS:
        value = schema.get(keyword)
        if value is None or (keyword.startswith("exclusive") and value is False):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            return not keyword.startswith("exclusive")  # llguidance says what is wrong
        if keyword.startswith("exclusive") and schema.get("type") != "integer":
            return False
        most = MOST_STEP if keyword == "multipleOf" else SAFE
        if not _is_finite(value) or value != int(value) or abs(value) > most or (keyword == "multipleOf" and not value):
            return False
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return all(map(is_plain_value, values if isinstance(values, list) else ()))


def is_plain_value(value: Any) -> bool:
    """Return whether llguidance writes the numbers in a value as they are."""
    if isinstance(value, dict):
        return all(map(is_plain_value, value.values()))
    if isinstance(value, list):
        return all(map(is_plain_value, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return abs(value) <= SAFE and (isinstance(value, int) or value == int(value))
