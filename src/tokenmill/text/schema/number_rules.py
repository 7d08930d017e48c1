"""The rule of a set of numbers: an expression of their decimal digits where there is no step, rules for each remainder
where there is one.
"""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from tokenmill.text.schema.multiples import Multiples, TooMany
from tokenmill.text.schema.numbers import SAFE, NumberError, Numbers, strictest
from tokenmill.text.schema.rules import Alternative, Rules

MOST_LISTED = 1_000
ANY_NUMBER = r"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+\-]?[0-9]+)?/"
_LARGEST = Fraction(10**30)  # multiples beyond are not written where there is a bound
_LARGEST_STEP = 200_000  # that llguidance is given
MOST_DIGITS = 150
"""Digits of a whole number. Numbers of more digits are written with an exponent, or not at all."""
MOST_BEHIND = 40
"""Digits of a bound behind the point that count, from the first one that is not zero."""
_LEAST_EXPONENT = -300
_WIDE = 10**15  # bounds beyond which numbers are written with an exponent as well


def number_rule(numbers: Numbers, rules: Rules, json_options: dict[str, Any]) -> list[Alternative]:
    """Return the alternatives of a rule for these numbers; none where there is no such number."""
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
    """Return a bound for what is written with a decimal point and without."""
    return bound if whole is None or abs(whole) < SAFE else strictest(of, bound, whole)


def value_text(value: Any) -> str:
    """Write the number that is a value of its own: integers by their digits, others as Python writes the float."""
    if isinstance(value, int):
        return str(value)
    return str(int(value)) if value == int(value) and abs(value) < SAFE else json.dumps(value)


def _ranges(numbers: Numbers) -> list[str]:
    """Write expressions for the numbers between two bounds."""
    low, high = numbers.low, numbers.high
    first, last = numbers.whole_low, numbers.whole_high
    whole = integers(None if first is None else math.ceil(first), None if last is None else math.floor(last))
    if numbers.is_integer:
        return [whole] if whole else []
    if low is None and high is None:
        return [ANY_NUMBER.strip("/")]
    return [text for text in (whole, decimals(low, high), exponents(low, high)) if text]


def _spellings(value: Fraction, is_integer: bool) -> str:
    """Write an expression for one number, with zeros at the end or without."""
    whole, rest = divmod(abs(value.numerator), value.denominator)
    sign = "-" if value < 0 else ""
    if not rest:
        return f"{sign}{whole}" if is_integer else rf"{sign}{whole}(?:\.0+)?"
    digits = format(Decimal(rest) / Decimal(value.denominator), "f")[1:]
    return f"{sign}{whole}\\{digits}0*"


def _by_llguidance(numbers: Numbers, json_options: dict[str, Any]) -> str:
    """Have llguidance follow a step with more remainders than there are rules for. NumberError where it cannot."""
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


def integers(low: int | None, high: int | None) -> str:
    """Write an expression for the whole numbers from low to high; empty if there is none. Zero has no sign."""
    return _signed(low, high, 1, _magnitudes)


def decimals(low: Fraction | None, high: Fraction | None) -> str:
    """Write an expression for the numbers between with a decimal point; empty if there is none."""
    return _signed(low, high, 0, _fractions)


def exponents(low: Fraction | None, high: Fraction | None) -> str:
    """Write an expression for the numbers between with an exponent, where bounds are as wide as that; else empty."""
    is_wide = (low is not None and low <= -_WIDE) or (high is not None and high >= _WIDE)
    return _signed(low, high, 0, _scientific) if is_wide else ""


def _signed(low: Any, high: Any, least: int, write: Callable[[Any, Any], list[str]]) -> str:
    """Write an expression for the numbers between, whose amounts `write` writes. least: the least amount below zero."""
    parts = []
    if low is None or low < 0:
        below = write(least if high is None else max(least, -high), None if low is None else -low)
        parts += [f"-{_one_of(below)}"] if below else []
    if high is None or high >= 0:
        parts += write(max(low or 0, 0), high)
    return _one_of(parts) if parts else ""


def _one_of(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _magnitudes(low: int, high: int | None) -> list[str]:
    """Write expressions for the whole numbers from low, which is not negative, to high."""
    if high is None or len(str(high)) > MOST_DIGITS:
        first = str(low)
        if len(first) > MOST_DIGITS:
            return []
        longer = f"[1-9][0-9]{{{len(first)},{'' if high is None else MOST_DIGITS - 1}}}"
        return [*_magnitudes(low, 10 ** len(first) - 1), *([longer] if len(first) < MOST_DIGITS else [])]
    parts, length = [], len(str(low))
    while low <= high:
        last = min(high, 10**length - 1)
        parts.append(_between(str(low), str(last)))
        low, length = last + 1, length + 1
    return parts


def _between(low: str, high: str) -> str:
    """Write an expression for the digits of one length from low to high."""
    if low == high:
        return low
    if set(low) == {"0"} and set(high) == {"9"}:
        return _any(len(low))
    if low[0] == high[0]:
        return low[0] + _between(low[1:], high[1:])
    rest = len(low) - 1
    first, last, parts = int(low[0]), int(high[0]), []
    if set(low[1:]) - {"0"}:
        parts.append(low[0] + _between(low[1:], "9" * rest))
        first += 1
    tail = None
    if set(high[1:]) - {"9"}:
        tail = high[0] + _between("0" * rest, high[1:])
        last -= 1
    if first <= last:
        parts.append(_digit(first, last) + _any(rest))
    return _one_of([*parts, *([tail] if tail else [])])


def _any(number: int) -> str:
    return "" if not number else "[0-9]" if number == 1 else f"[0-9]{{{number}}}"


def _digit(first: int, last: int) -> str:
    return str(first) if first == last else f"[{first}-{last}]"


def _split(value: Fraction, towards: int) -> tuple[int, str]:
    """Return the whole part of a decimal number and its digits behind the point, without zeros at the end. Of a long
    one, return the first digits, as of a number that is no less (towards is 1), or no more.
    """
    rest = value - value.numerator // value.denominator
    places = MOST_BEHIND + (max(0, -_exponent(rest)) if rest else 0)
    scaled = value * 10**places
    number = -(-scaled.numerator // scaled.denominator) if towards > 0 else scaled.numerator // scaled.denominator
    whole, behind = divmod(number, 10**places)
    return whole, str(behind).zfill(places).rstrip("0")


def _fractions(low: Fraction, high: Fraction | None) -> list[str]:
    """Write expressions for the numbers from low, which is not negative, to high, with a decimal point."""
    (first, after), parts = _split(low, 1), []
    if high is None:
        rest = _magnitudes(first + 1, None)
        return [f"{first}\\.{_from(after)}", *(f"{each}\\.[0-9]+" for each in rest)]
    last, before = _split(high, -1)
    if (first, after) > (last, before):
        return []
    if first == last:
        return [f"{first}\\.{_from_to(after, before)}"]
    parts.append(f"{first}\\.{_from(after)}")
    parts += [f"{each}\\.[0-9]+" for each in _magnitudes(first + 1, last - 1)]
    if len(str(last)) <= MOST_DIGITS:
        parts.append(f"{last}\\.{_up_to(before)}")
    return parts


def _from(low: str) -> str:
    """Write an expression for one digit or more behind a point that are low or more."""
    if not low:
        return "[0-9]+"
    zeros = len(low) - len(low.lstrip("0"))
    if zeros > 1:
        return f"(?:0{{0,{zeros - 1}}}[1-9][0-9]*|0{{{zeros}}}{_from(low[zeros:])})"
    rest = "[0-9]*" if len(low) == 1 else _from(low[1:])
    more = f"{_digit(int(low[0]) + 1, 9)}[0-9]*" if low[0] < "9" else ""
    return f"(?:{low[0]}{rest}|{more})" if more else f"{low[0]}{rest}"


def _up_to(high: str) -> str:
    """Write an expression for one digit or more behind a point that are high or less."""
    if not high:
        return "0+"
    zeros = len(high) - len(high.lstrip("0"))
    if zeros > 1:
        return f"(?:0{{1,{zeros - 1}}}|0{{{zeros}}}(?:{_up_to(high[zeros:])})?)"
    rest = "0*" if len(high) == 1 else f"(?:{_up_to(high[1:])})?"
    less = f"|{_digit(0, int(high[0]) - 1)}[0-9]*" if high[0] > "0" else ""
    return f"(?:{high[0]}{rest}{less})"


def _from_to(low: str, high: str) -> str:
    """Write an expression for one digit or more behind a point that are from low to high."""
    if not low:
        return _up_to(high)
    if low[0] == high[0]:
        if len(low) == 1:
            return low[0] + (f"(?:{_up_to(high[1:])})?" if len(high) > 1 else "0*")
        return low[0] + _from_to(low[1:], high[1:])
    first, last = int(low[0]), int(high[0])
    parts = [low[0] + ("[0-9]*" if len(low) == 1 else _from(low[1:]))]
    parts += [f"{_digit(first + 1, last - 1)}[0-9]*"] if last - first > 1 else []
    parts.append(high[0] + ("0*" if len(high) == 1 else f"(?:{_up_to(high[1:])})?"))
    return _one_of(parts)


def _scientific(low: Fraction, high: Fraction | None) -> list[str]:
    """Write expressions for the numbers from low, which is not negative, to high, with an exponent."""
    if high == 0:
        return []
    least = _exponent(low) if low else _LEAST_EXPONENT
    most = _exponent(high) if high is not None else None
    parts = []
    for exponent in sorted({each for each in (least if low else None, most) if each is not None}):
        scale = Fraction(10) ** exponent
        mantissa = _mantissas(max(low / scale, Fraction(1)), None if high is None else high / scale)
        if mantissa:
            parts.append(f"{_one_of(mantissa)}[eE]{_written(exponent, exponent)}")
    first, last = (least + 1 if low else least), (most - 1 if most is not None else None)
    if last is None or first <= last:
        parts.append(rf"[1-9](?:\.[0-9]+)?[eE]{_written(first, last)}")
    return parts


def _mantissas(low: Fraction, high: Fraction | None) -> list[str]:
    """Write expressions for the numbers from low, which is 1 or more, to high and below 10."""
    if high is not None and high < 10:
        whole = integers(-(-low.numerator // low.denominator), high.numerator // high.denominator)
        return [each for each in (whole, decimals(low, high)) if each] if low <= high else []
    first, after = _split(low, 1)
    parts = [] if after else [str(first)]
    more = [rf"{_digit(first + 1, 9)}(?:\.[0-9]+)?"] if first < 9 else []
    return [*parts, f"{first}\\.{_from(after)}", *more]


def _exponent(value: Fraction) -> int:
    """Return the power of ten of the first digit of a number that is not zero."""
    found = len(str(value.numerator)) - len(str(value.denominator)) - 1
    while value >= Fraction(10) ** (found + 1):
        found += 1
    return found


def _written(low: int, high: int | None) -> str:
    """Write an expression for exponents: their sign may be written, and a zero before them."""
    parts = []
    if low < 0:
        below = _magnitudes(max(1, -high) if high is not None and high < 0 else 1, -low)
        parts.append(f"-0?{_one_of(below)}")
    if high is None or high >= 0:
        parts.append(rf"\+?0?{_one_of(_magnitudes(max(low, 0), high))}")
    return _one_of(parts)
