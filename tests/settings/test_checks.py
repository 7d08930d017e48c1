"""Checks of single settings: both sides of every limit, what counts as a number, and the words of each refusal."""

import math
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from tokenmill.errors import ConfigError
from tokenmill.value_reader import CHECKS, check_choice, check_flag, check_number, check_text, check_token_id


def refused(check, *given, **limits) -> str:
    with pytest.raises(ConfigError) as raised:
        check("x", *given, **limits)
    return str(raised.value)


def test_flags():
    assert check_flag("x", True) is True and check_flag("x", False) is False
    for wrong in (1, 0, "true", None, np.bool_(True)):
        assert refused(check_flag, wrong) == f"x = {wrong!r} is not allowed: true or false"


@pytest.mark.parametrize("value", [1, 10**30, np.int64(7), torch.tensor(7).item()])
def test_whole_numbers(value):
    found = check_number("x", value)
    assert found == value and type(found) is int


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", None, True, math.nan, [1], torch.tensor(1)])
def test_what_is_no_whole_number_from_1(value):
    assert refused(check_number, value) == f"x = {value!r} is not allowed: a whole number, 1 or more"


@pytest.mark.parametrize("value", [0.5, 1, np.float32(0.5), Fraction(1, 2)])
def test_numbers(value):
    found = check_number("x", value, whole=False, minimum=0)
    assert found == value and type(found) in (int, float) and isinstance(found, int) == isinstance(value, int)


@pytest.mark.parametrize("value", [-0.1, math.nan, True, "0.5", 1j, None])
def test_what_is_no_number_from_0(value):
    assert refused(check_number, value, whole=False, minimum=0) == f"x = {value!r} is not allowed: a number, 0 or more"


def test_limits_are_allowed_and_what_is_beyond_is_not():
    assert [check_number("x", value, minimum=2, maximum=4) for value in (2, 3, 4)] == [2, 3, 4]
    for value in (1, 5):
        assert refused(check_number, value, minimum=2, maximum=4).endswith("a whole number from 2 to 4")
    assert check_number("x", 1, False, 0, 1, exclusive=True) == 1
    said = "x = 0 is not allowed: a number above 0 and up to 1"
    assert refused(check_number, 0, whole=False, minimum=0, maximum=1, exclusive=True) == said
    assert check_number("x", 0, False, 0, 1) == 0
    assert check_number("x", math.inf, whole=False) == math.inf


def test_token_ids_begin_with_0():
    assert check_token_id("x", 0) == 0
    assert refused(check_token_id, -1) == "x = -1 is not allowed: a whole number, 0 or more"


def test_choices():
    check_choice("x", "a", ("a", "b"))
    check_choice("x", 32, (32, 64))
    assert refused(check_choice, "c", ("a", "b")) == "x = 'c' is not allowed: use one of a, b"
    assert refused(check_choice, 3, (32, 64)) == "x = 3 is not allowed: use one of 32, 64"


def test_texts():
    assert check_text("x", "any") == "any" and check_text("x", Path("a/b")) == "a/b"
    assert check_text("x", "a", ("a", "b")) == "a"
    assert refused(check_text, "") == "x = '' is not allowed: a text that is not empty"
    assert refused(check_text, 3) == "x = 3 is not allowed: a text that is not empty"
    for wrong in ("", 3, None, "c", b"a"):
        assert refused(check_text, wrong, choices=("a", "b")) == f"x = {wrong!r} is not allowed: use one of a, b"


def test_lists():
    words, ids = CHECKS[tuple[str, ...]], CHECKS[tuple[int, ...]]
    assert words("x", "one") == ("one",) and words("x", ["a", "b"]) == ("a", "b") == words("x", ("a", "b"))
    assert words("x", None) == words("x", []) == ids("x", ()) == ()
    assert ids("x", [0, 5]) == (0, 5)
    for check, wrong in ((ids, "15"), (ids, 5), (words, {"a"}), (words, 3)):
        assert refused(check, wrong) == f"x = {wrong!r} is not allowed: a list; an empty one for none"
    assert refused(words, ["a", ""]) == "x = '' is not allowed: a text that is not empty"
    assert refused(ids, [0, -1]) == "x = -1 is not allowed: a whole number, 0 or more"


def test_a_bias_for_each_token():
    check = CHECKS[Mapping[int, float]]
    assert check("x", {5: 1, "7": -math.inf, 0: -1000, 1: 1000, "0": 2.5}) == {5: 1, 7: -math.inf, 0: 2.5, 1: 1000}
    assert all(type(token) is int for token in check("x", {"7": 1.0, np.int64(3): 1.0}))
    assert check("x", None) == check("x", {}) == {}
    assert refused(check, [1]) == "x = [1] is not allowed: a mapping of token ids to numbers"
    for token in ("-1", "1.0", "x", "", "1" * 20, -1, 2.0, None):
        assert refused(check, {token: 1.0}) == f"x token id = {token!r} is not allowed: a whole number, 0 or more"
    assert check("x", {"1" * 19: 1.0}) == {int("1" * 19): 1.0}
    for amount in (-1000.5, 1001, math.inf, math.nan, "1", None, True):
        assert refused(check, {5: amount}) == f"x[5] = {amount!r} is not allowed: a number from -1000 to 1000"


@pytest.mark.parametrize(
    ("kind", "value", "wrong"),
    [
        (bool, True, 1),
        (int, 1, 0),
        (int | None, 1, 0),
        (float, 1.5, "x"),
        (float | None, 1.5, "x"),
        (str, "a", ""),
        (str | None, "a", ""),
        (tuple[int, ...] | None, (5,), (-1,)),
    ],
    ids=str,
)
def test_each_type_has_its_check(kind, value, wrong):
    assert CHECKS[kind]("x", value) == value
    with pytest.raises(ConfigError):
        CHECKS[kind]("x", wrong)
