"""Rules for the multiples of a step between two bounds: a state for each remainder that matters, digit by digit.

A regular expression of remainders would grow without bound, so these are rules, each of which reads one digit.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from tokenmill.text.schema.rules import Alternative, Rules

MOST_STATES = 3_500
"""llguidance takes half a millisecond to compile a state."""


class TooMany(ValueError):
    """More states would be needed than there may be."""


class _State(NamedTuple):
    """The digits so far, as far as they matter. places: how many stand before the point; behind: how many behind it,
    None: no point yet. low, high: -1, 0, 1: less than the bound's digits, the same, more.
    """

    places: int
    behind: int | None
    low: int
    high: int
    remainder: int


class Multiples:
    """The multiples of a step, as coefficient · 10**exponent of which the coefficient is no multiple of ten."""

    def __init__(self, step: Fraction, rules: Rules, is_integer: bool) -> None:
        self.exponent = 0
        while step.denominator != 1:
            step, self.exponent = step * 10, self.exponent - 1
            if self.exponent < -400:
                raise TooMany
        while step.numerator % 10 == 0:
            step, self.exponent = step / 10, self.exponent + 1
        self.coefficient, self.rules = step.numerator, rules
        self.may_point = self.exponent < 0 and not is_integer
        self.num_states, self.same = 0, _equal_remainders(self.coefficient)
        self._readers: dict[tuple[int, int | None], _Reader] = {}

    def between(self, low: Fraction | None, high: Fraction | None) -> Iterator[Alternative]:
        """Yield the alternatives of a rule for the multiples between bounds. TooMany if it needs too many states."""
        scale = Fraction(10) ** self.exponent
        first = None if low is None else -((-low) // scale)
        last = None if high is None else high // scale
        has_zero = (first is None or first <= 0) and (last is None or last >= 0)
        if last is None or last >= 0:
            yield from self._side(max(first or 0, 0), last, "", has_zero)
        if first is None or first < 0:
            least = 0 if last is None or last >= 0 else -last
            yield from self._side(least, None if first is None else -first, "-", has_zero)

    def _side(self, low: int, high: int | None, sign: str, has_zero: bool) -> Iterator[Alternative]:
        """Yield the numbers of one sign, whose multiples of 10**exponent are from low to high."""
        if high is not None and low > high:
            return
        reader = self._readers.setdefault((low, high), _Reader(self, low, high))
        begins: dict[str, list[int]] = {}
        for digit in range(10):
            if digit == 0 and self.exponent >= 0:
                if has_zero and not sign:
                    yield ('"0"',)
                continue
            if (name := reader.begun(digit)) is not None:
                begins.setdefault(name, []).append(digit)
        for name, digits in begins.items():
            yield (*([f'"{sign}"'] if sign else []), _digits(digits), name)


class _Reader:
    """A maker of the rules of one sign."""

    def __init__(self, of: Multiples, low: int, high: int | None) -> None:
        self._of, self._places_behind = of, max(0, -of.exponent)
        unit = 10**self._places_behind
        self._low = self._split(low, unit)
        self._high = None if high is None else self._split(high, unit)
        self._names: dict[_State, str] = {}

    def _split(self, bound: int, unit: int) -> tuple[str, str]:
        whole, rest = divmod(bound, unit)
        return str(whole), str(rest).zfill(self._places_behind) if self._places_behind else ""

    def begun(self, digit: int) -> str | None:
        """Return the rule for what follows the first digit."""
        return self._state(self._read(_State(0, None, 0, 0, 0), digit))

    def _state(self, state: _State | None) -> str | None:
        if state is None:
            return None
        waiting = [state]
        if state not in self._names:
            self._names[state] = self._new()
            while waiting:
                waiting += self._write(waiting.pop())
        return self._names[state]

    def _new(self) -> str:
        self._of.num_states += 1
        if self._of.num_states > MOST_STATES:
            raise TooMany
        return self._of.rules.name()

    def _write(self, state: _State) -> list[_State]:
        """Write the rule of a state; return the states that are new."""
        is_zero = state.behind is None and state.places == -1
        digits = {} if is_zero else self._targets(state)
        has_point = state.behind is None and self._of.may_point
        behind = self._targets(self._pointed(state)) if has_point else {}
        new = [each for each in dict.fromkeys((*digits, *behind)) if each not in self._names]
        for each in new:
            self._names[each] = self._new()
        made = self._written(digits)
        if behind:
            made.append(('"."', self._of.rules.rule(self._written(behind))))
        if self._may_end(state):
            made.append(('"0"',) * self._of.exponent)  # apart, since the longest terminal that fits is read
        self._of.rules.rule(made, self._names[state])
        return new

    def _targets(self, state: _State) -> dict[_State, list[int]]:
        """Return the states behind one more digit, with these digits."""
        found: dict[_State, list[int]] = {}
        for digit in range(10):
            if (after := self._read(state, digit)) is not None:
                found.setdefault(after, []).append(digit)
        return found

    def _written(self, targets: dict[_State, list[int]]) -> list[Alternative]:
        return [(_digits(digits), self._names[each]) for each, digits in targets.items()]

    def _pointed(self, state: _State) -> _State:
        return _State(0, 0, *self._compared(state), state.remainder)

    def _compared(self, state: _State) -> tuple[int, int]:
        """Compare the digits before the point with the digits of the bounds."""
        places = abs(state.places)
        low = self._by_length(places, len(self._low[0]), state.low)
        high = -1 if self._high is None else self._by_length(places, len(self._high[0]), state.high)
        return low, high

    @staticmethod
    def _by_length(places: int, length: int, compared: int) -> int:
        return compared if places == length else 1 if places > length else -1

    def _read(self, state: _State, digit: int) -> _State | None:
        """Return the state behind one more digit; None where no multiple goes on so."""
        remainder = self._of.same[(state.remainder * 10 + digit) % self._of.coefficient]
        if state.behind is not None:
            return self._read_behind(state, digit, remainder)
        at, most = abs(state.places), max(len(self._low[0]), len(self._high[0]) if self._high else 0) + 1
        low = self._one(state.low, self._low[0], at, digit)
        high = self._one(state.high, self._high[0], at, digit) if self._high is not None else 0
        places = min(at + 1, most)
        if self._high is not None and places > len(self._high[0]):
            return None
        if self._high is not None and places == len(self._high[0]) and high > 0:
            return None
        low = low if places <= len(self._low[0]) else 0
        return _State(-1 if places == 1 and at == 0 and digit == 0 else places, None, low, high, remainder)

    def _read_behind(self, state: _State, digit: int, remainder: int) -> _State | None:
        at = state.behind or 0
        if at == self._places_behind:
            return state if digit == 0 else None
        low = self._one(state.low, self._low[1], at, digit)
        high = self._one(state.high, self._high[1], at, digit) if self._high is not None else -1
        left = 10 ** (self._places_behind - at - 1)
        if low < 0 or high > 0 or -remainder * left % self._of.coefficient >= left:  # no digits left make a multiple
            return None
        return _State(0, at + 1, low, high, remainder)

    @staticmethod
    def _one(compared: int, bound: str, at: int, digit: int) -> int:
        """Compare with a bound after one more digit."""
        if compared or at >= len(bound):
            return compared
        return (digit > int(bound[at])) - (digit < int(bound[at]))

    def _may_end(self, state: _State) -> bool:
        """Return whether a number may end here: as if zeros followed up to the last place."""
        low, high = (state.low, state.high) if state.behind is not None else self._compared(state)
        at = state.behind or 0
        if low < 0 or high > 0 or (low == 0 and self._low[1][at:].strip("0")):
            return False
        return bool(state.remainder * 10 ** (self._places_behind - at) % self._of.coefficient == 0)


def _digits(found: list[int]) -> str:
    return f'"{found[0]}"' if len(found) == 1 else f"/[{''.join(map(str, found))}]/"


def _equal_remainders(coefficient: int) -> list[int]:
    """Return for each remainder the first one from which the same digits lead to multiples.

    Remainders of a power of two or five are told apart by a few last digits only.
    """
    power, rest = 1, coefficient
    for prime in (2, 5):
        while rest % prime == 0:
            power, rest = power * prime, rest // prime
    if coefficient > 20 * MOST_STATES:
        raise TooMany
    classes = [int(number == 0) for number in range(power)]
    while True:
        keys = [(classes[n], *(classes[(n * 10 + digit) % power] for digit in range(10))) for n in range(power)]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        refined = [numbers[key] for key in keys]
        if len(numbers) == len(set(classes)):
            break
        classes = refined
    first: dict[tuple[int, int], int] = {}
    return [first.setdefault((n % rest, classes[n % power]), n) for n in range(coefficient)]
