"""Regular expressions for the decimal digits of numbers between two bounds."""

from fractions import Fraction

MOST_DIGITS = 150
"""Of whole numbers. Those with more are written with an exponent, or not at all."""
MOST_BEHIND = 40
"""Digits of a bound behind the point that count, from the first one that is not zero."""
_LEAST_EXPONENT = -300
_WIDE = 10**15  # bounds beyond which numbers are written with an exponent as well


def integers(low: int | None, high: int | None) -> str:
    """The whole numbers from low to high; empty if there is none. Zero has no sign."""
    parts = []
    if low is None or low < 0:
        below = _magnitudes(max(1, -high) if high is not None else 1, -low if low is not None else None)
        parts += [f"-{_one_of(below)}"] if below else []
    if high is None or high >= 0:
        parts += _magnitudes(max(low or 0, 0), high)
    return _one_of(parts) if parts else ""


def decimals(low: Fraction | None, high: Fraction | None) -> str:
    """The numbers between that are written with a decimal point; empty if there is none."""
    parts = []
    if low is None or low < 0:
        below = _fractions(
            max(Fraction(0), -high) if high is not None else Fraction(0), -low if low is not None else None
        )
        parts += [f"-{_one_of(below)}"] if below else []
    if high is None or high >= 0:
        parts += _fractions(max(low or Fraction(0), Fraction(0)), high)
    return _one_of(parts) if parts else ""


def exponents(low: Fraction | None, high: Fraction | None) -> str:
    """The numbers between that are written with an exponent, where bounds are as wide as that; empty elsewhere."""
    if not ((low is not None and low <= -_WIDE) or (high is not None and high >= _WIDE)):
        return ""
    parts = []
    if low is None or low < 0:
        below = _scientific(
            max(Fraction(0), -high) if high is not None else Fraction(0), -low if low is not None else None
        )
        parts += [f"-{_one_of(below)}"] if below else []
    if high is None or high > 0:
        parts += _scientific(max(low or Fraction(0), Fraction(0)), high)
    return _one_of(parts) if parts else ""


def _one_of(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _magnitudes(low: int, high: int | None) -> list[str]:
    """The whole numbers from low, which is not negative, to high."""
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
    """Digits of one length from low to high."""
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
    """The whole part of a decimal number and its digits behind the point, without zeros at the end. Of long ones the
    first digits, as of a number that is no less (towards is 1), or no more.
    """
    rest = value - value.numerator // value.denominator
    places = MOST_BEHIND + (max(0, -_exponent(rest)) if rest else 0)
    scaled = value * 10**places
    number = -(-scaled.numerator // scaled.denominator) if towards > 0 else scaled.numerator // scaled.denominator
    whole, behind = divmod(number, 10**places)
    return whole, str(behind).zfill(places).rstrip("0")


def _fractions(low: Fraction, high: Fraction | None) -> list[str]:
    """The numbers from low, which is not negative, to high, with a decimal point."""
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
    """One digit or more behind a point that are low or more."""
    if not low:
        return "[0-9]+"
    zeros = len(low) - len(low.lstrip("0"))
    if zeros > 1:
        return f"(?:0{{0,{zeros - 1}}}[1-9][0-9]*|0{{{zeros}}}{_from(low[zeros:])})"
    rest = "[0-9]*" if len(low) == 1 else _from(low[1:])
    more = f"{_digit(int(low[0]) + 1, 9)}[0-9]*" if low[0] < "9" else ""
    return f"(?:{low[0]}{rest}|{more})" if more else f"{low[0]}{rest}"


def _up_to(high: str) -> str:
    """One digit or more behind a point that are high or less."""
    if not high:
        return "0+"
    zeros = len(high) - len(high.lstrip("0"))
    if zeros > 1:
        return f"(?:0{{1,{zeros - 1}}}|0{{{zeros}}}(?:{_up_to(high[zeros:])})?)"
    rest = "0*" if len(high) == 1 else f"(?:{_up_to(high[1:])})?"
    less = f"|{_digit(0, int(high[0]) - 1)}[0-9]*" if high[0] > "0" else ""
    return f"(?:{high[0]}{rest}{less})"


def _from_to(low: str, high: str) -> str:
    """One digit or more behind a point that are neither less than low nor more than high."""
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
    """The numbers from low, which is not negative, to high, as one digit, others behind a point, and an exponent."""
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
    """The numbers from low, which is 1 or more, to high and below 10."""
    if high is not None and high < 10:
        whole = integers(-(-low.numerator // low.denominator), high.numerator // high.denominator)
        return [each for each in (whole, decimals(low, high)) if each] if low <= high else []
    first, after = _split(low, 1)
    parts = [] if after else [str(first)]
    more = [rf"{_digit(first + 1, 9)}(?:\.[0-9]+)?"] if first < 9 else []
    return [*parts, f"{first}\\.{_from(after)}", *more]


def _exponent(value: Fraction) -> int:
    """That of ten, of the first digit of a number that is not zero."""
    found = len(str(value.numerator)) - len(str(value.denominator)) - 1
    while value >= Fraction(10) ** (found + 1):
        found += 1
    return found


def _written(low: int, high: int | None) -> str:
    """Exponents, whose sign may be written, and two digits of those that have one."""
    parts = []
    if low < 0:
        below = _magnitudes(max(1, -high) if high is not None and high < 0 else 1, -low)
        parts.append(f"-0?{_one_of(below)}")
    if high is None or high >= 0:
        parts.append(rf"\+?0?{_one_of(_magnitudes(max(low, 0), high))}")
    return _one_of(parts)
