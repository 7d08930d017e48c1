"""What a schema says about a number, exactly: bounds, steps and values are fractions, never floats.

Bounds that exclude themselves become the nearest float's, which they include: a text of more digits would be read as
the bound itself. Values and bounds are what JSON's decimal digits say.
"""

import math
from collections.abc import Mapping
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
    """A set of numbers: from low to high, multiples of step; None: no such demand. values: these alone.

    is_integer: written without a decimal point.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    step: Fraction | None = None
    values: frozenset[Fraction] | None = None
    is_integer: bool = False

    def __and__(self, other: "Numbers") -> "Numbers":
        lows = [each for each in (self.low, other.low) if each is not None]
        highs = [each for each in (self.high, other.high) if each is not None]
        steps = [each for each in (self.step, other.step) if each is not None]
        values = [each for each in (self.values, other.values) if each is not None]
        return Numbers(
            max(lows, default=None),
            min(highs, default=None),
            _common(*steps) if len(steps) == 2 else steps[0] if steps else None,
            frozenset.intersection(*values) if values else None,
            self.is_integer or other.is_integer,
        )

    def holds(self, value: Fraction) -> bool:
        """Whether a number is one of these."""
        return (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.step is None or (value / self.step).denominator == 1)
            and (self.values is None or value in self.values)
            and (not self.is_integer or value.denominator == 1)
        )


def exact(value: Any, keyword: str) -> Fraction:
    """The number that a keyword has; NumberError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NumberError(f"{keyword} is no number: {value!r:.50}")
    return Fraction(value) if isinstance(value, int) else Fraction(Decimal(repr(value)))


def numbers_of(schema: Mapping[str, Any], is_integer: bool) -> Numbers:
    """What the keywords of one schema say about integers, or about numbers. NumberError for a value of one of them that
    it cannot have.
    """
    low = _bound(schema, "minimum", "exclusiveMinimum", 1, is_integer)
    high = _bound(schema, "maximum", "exclusiveMaximum", -1, is_integer)
    step = None
    if (given := schema.get("multipleOf")) is not None:
        step = abs(exact(given, "multipleOf"))
        if not step:
            raise NumberError("multipleOf is 0, of which nothing but 0 is a multiple")
    return Numbers(low, high, step, None, is_integer)


def _bound(schema: Mapping[str, Any], keyword: str, excluding: str, towards: int, whole: bool) -> Fraction | None:
    """The bound of two keywords. In draft 4 the excluding one is true or false."""
    found = list[Fraction]()
    value, other = schema.get(keyword), schema.get(excluding)
    if value is not None and other is not True and not _is_open(value, towards):
        found += _readings(value, keyword)
    other = value if other is True else None if other is False else other
    if other is not None and not _is_open(other, towards):
        found += _behind(other, excluding, towards, whole)
    return (max if towards > 0 else min)(found, default=None)


def _readings(value: Any, keyword: str) -> list[Fraction]:
    """A bound by its digits, and by the float that they are read as, which is another number from 2**53 on."""
    found = [exact(value, keyword)]
    return [*found, Fraction(value)] if isinstance(value, float) and abs(value) >= SAFE else found


def _is_open(value: Any, towards: int) -> bool:
    """Whether a bound is one that every number keeps, such as 1e999 for a maximum."""
    return isinstance(value, float) and math.isinf(value) and (value > 0) == (towards < 0)


def _behind(value: Any, keyword: str, towards: int, whole: bool) -> list[Fraction]:
    """The first numbers behind a bound, in each of its readings."""
    bounds = _readings(value, keyword)
    if whole:
        return [Fraction(math.floor(each) + 1 if towards > 0 else math.ceil(each) - 1) for each in bounds]
    try:
        return _readings(math.nextafter(float(value), math.inf * towards), keyword)
    except OverflowError:  # of an integer that no float holds
        return [each + towards for each in bounds]


def _common(one: Fraction, other: Fraction) -> Fraction:
    """The least step that both divide."""
    return Fraction(
        math.lcm(one.numerator * other.denominator, other.numerator * one.denominator),
        one.denominator * other.denominator,
    )


def is_plain(schema: Mapping[str, Any]) -> bool:
    """Whether llguidance reads the numbers of one schema as they are: whole bounds that are included, short steps."""
    for keyword in KEYWORDS:
        value = schema.get(keyword)
        if value is None or (keyword.startswith("exclusive") and value is False):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            return keyword.startswith("exclusive") is False  # llguidance says what is wrong
        if keyword.startswith("exclusive") and schema.get("type") != "integer":
            return False
        most = MOST_STEP if keyword == "multipleOf" else SAFE
        if (
            not math.isfinite(value)
            or value != int(value)
            or abs(value) > most
            or (keyword == "multipleOf" and not value)
        ):
            return False
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return all(map(is_plain_value, values if isinstance(values, list) else ()))


def is_plain_value(value: Any) -> bool:
    """Whether llguidance writes the numbers in a value as they are."""
    if isinstance(value, dict):
        return all(map(is_plain_value, value.values()))
    if isinstance(value, list):
        return all(map(is_plain_value, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return True
    return abs(value) <= SAFE and (isinstance(value, int) or value == int(value))
