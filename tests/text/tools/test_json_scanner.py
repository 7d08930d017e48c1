"""The end of a JSON value: where Python's json finds it, however the text is cut."""

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.text.tools.source import MAX_DEPTH, JsonScanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
PIECES = ["", " ", ",", "}", "]", '"', "\\", "0", "-", "e", ".", "tru", "\\u12", "\\ud83d", "\n", "\x01", ":", "{", "["]


def scanned(text, rng):
    """Where the value ends, None where there is none; a text of pieces, and one that is whole."""
    found = []
    for cuts in (False, True):
        scanner, at = JsonScanner(), 0
        while at < len(text) and not (scanner.is_done or scanner.is_wrong):
            end = min(len(text), at + rng.choice([1, 2, 5])) if cuts else len(text)
            taken = scanner.scan(text[:end], at)
            if taken < end:
                break
            at = taken
        else:
            taken = at
        scanner.end()
        found.append(taken if scanner.is_done else None)
    assert found[0] == found[1]
    return found[0]


def refuse(name):
    raise ValueError(name)


def expected(text):
    try:
        decoder = json.JSONDecoder(parse_constant=refuse)
        return decoder.raw_decode(text.lstrip(" \t\r\n"))[1] + len(text) - len(text.lstrip(" \t\r\n"))
    except ValueError:
        return None


@settings(max_examples=60, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 1]), st.randoms(use_true_random=False))
def test_values_end_where_python_finds_their_end(value, ascii_only, indent, rng):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert scanned(text, rng) == len(text)
    if isinstance(value, (dict, list, str)):
        assert scanned(f"{text} }}", rng) == len(text)


def test_damaged_values_are_none_where_they_are_none_to_python():
    for seed in range(300):
        rng = Random(seed)
        written = {"a": [1.5, -2, "x\\\n\u00e9", None], "b": {"c": True, "d": ""}}
        text = json.dumps(written, ensure_ascii=rng.random() < 0.5)
        for _ in range(rng.choice([1, 2, 3])):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(PIECES) + text[at + rng.choice([0, 0, 1]) :]
        assert scanned(text, rng) == expected(text), text


@pytest.mark.parametrize("text", ["NaN", "Infinity", "+1", "tru", "'a'", "", "{,}", "[1,]", '{"a"}', '"\t"'])
def test_what_is_no_json(text):
    assert scanned(text, Random(0)) is expected(text) is None


def test_what_is_nested_too_deep_is_none():
    assert scanned("[" * MAX_DEPTH + "]" * MAX_DEPTH, Random(0)) == 2 * MAX_DEPTH
    assert scanned("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), Random(0)) is None
