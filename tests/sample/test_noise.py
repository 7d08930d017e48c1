"""The number of (seed, position): the same for ever, uniform, and unrelated to its neighbours."""

import math
from collections import Counter
from functools import cache

import pytest

from tokenmill.sample.noise import uniform

NUM = 40_000
# Every statistic below is at most five standard deviations from what true noise gives; the inputs are fixed.
SIGMAS = 5


def chi_square_bound(num_bins: int) -> float:
    """Mean of chi-square is its degrees of freedom, variance twice that."""
    freedom = num_bins - 1
    return freedom + SIGMAS * math.sqrt(2 * freedom)


def chi_square(bins: list[int], num_bins: int) -> float:
    counts, expected = Counter(bins), len(bins) / num_bins
    return sum((counts[place] - expected) ** 2 for place in range(num_bins)) / expected


def correlation(left: list[float], right: list[float]) -> float:
    """The correlation of numbers that are uniform in (0, 1): their mean is 1/2, their variance 1/12."""
    return 12 * sum((a - 0.5) * (b - 0.5) for a, b in zip(left, right, strict=True)) / len(left)


STREAMS = {
    "positions of seed 0": lambda index: uniform(0, index),
    "positions of the last seed": lambda index: uniform(2**63 - 1, index),
    "seeds at position 0": lambda index: uniform(index, 0),
    "last seeds at the last position": lambda index: uniform(2**63 - 1 - index, 2**31),
    "diagonal": lambda index: uniform(index, index),
    "antidiagonal": lambda index: uniform(index, NUM - index),
}


@cache
def stream(name: str) -> list[float]:
    return [STREAMS[name](index) for index in range(NUM)]


@pytest.mark.parametrize(
    ("seed", "position", "number"),
    [
        (0, 0, "0x1.0e364ebc59307p-1"),
        (0, 1, "0x1.d7c3cc70c7c48p-3"),
        (1, 0, "0x1.6b901ba37e1b6p-1"),
        (42, 7, "0x1.1e7531d4bc572p-1"),
        (123456789, 2047, "0x1.52f7a9db98dd0p-1"),
        (9223372036854775807, 2147483648, "0x1.17961cc7af5f7p-1"),
    ],
)
def test_numbers_never_change(seed: int, position: int, number: str) -> None:
    assert uniform(seed, position).hex() == number


def splitmix64(state: int) -> int:
    """The output for a state, as in the published splitmix64.c."""
    mask = 2**64 - 1
    z = state & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def test_the_hash_is_splitmix64() -> None:
    gamma = 0x9E3779B97F4A7C15
    # The first outputs of the published program for the seed 0.
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [splitmix64(count * gamma) for count in (1, 2, 3)] == expected
    for seed, position in ((0, 0), (1, 7), (2**63 - 1, 2**31)):
        key = splitmix64(seed + gamma)
        bits = splitmix64(splitmix64(key + (position + 1) * gamma) ^ key) >> 11
        assert uniform(seed, position) == bits / 2**53


@pytest.mark.parametrize("name", STREAMS)
def test_uniform(name: str) -> None:
    numbers = stream(name)
    assert all(0 < number < 1 for number in numbers)
    assert all((number * 2**53).is_integer() for number in numbers)
    assert len(set(numbers)) == NUM  # a repeat among 2**53 has a chance of one in ten million
    assert chi_square([int(number * 256) for number in numbers], 256) < chi_square_bound(256)
    # The low half of the bits as well: a coarse histogram sees only the high ones.
    assert chi_square([int(number * 2**53) % 256 for number in numbers], 256) < chi_square_bound(256)


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("lag", [1, 2, 16])
def test_neighbours_are_independent(name: str, lag: int) -> None:
    numbers = stream(name)
    left, right = numbers[:-lag], numbers[lag:]
    assert abs(correlation(left, right)) < SIGMAS / math.sqrt(len(left))
    pairs = [int(a * 16) * 16 + int(b * 16) for a, b in zip(left, right, strict=True)]
    assert chi_square(pairs, 256) < chi_square_bound(256)


def test_neighbouring_seeds_are_unrelated_streams() -> None:
    for seed in (0, 1, 2**32, 2**63 - 2):
        left = [uniform(seed, position) for position in range(10_000)]
        right = [uniform(seed + 1, position) for position in range(10_000)]
        assert abs(correlation(left, right)) < SIGMAS / math.sqrt(len(left))


def test_every_bit_of_seed_and_position_matters() -> None:
    numbers = (
        {uniform(0, 0)} | {uniform(1 << bit, 0) for bit in range(63)} | {uniform(0, 1 << bit) for bit in range(32)}
    )
    assert len(numbers) == 1 + 63 + 32
