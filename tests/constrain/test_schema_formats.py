"""Formats of texts. The right verdicts are pydantic's and jsonschema's."""

import datetime
import ipaddress
import json
import random
import re
import uuid

import jsonschema
import numpy as np
import pytest
from pydantic import AnyUrl, TypeAdapter

from tests.constrain.walks import accepts, allowed, compiled

TYPES = {
    "date": datetime.date,
    "time": datetime.time,
    "date-time": datetime.datetime,
    "duration": datetime.timedelta,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "uuid": uuid.UUID,
    "uri": AnyUrl,
}


def _of(vocabulary, name):
    return compiled(vocabulary, json_schema={"type": "string", "format": name})


@pytest.mark.parametrize("year", [4, 1900, 1999, 2000, 2023, 2024, 2100, 9996])
def test_days_of_february(bytes_only, year):
    constraint = _of(bytes_only, "date")
    for day in (28, 29, 30):
        try:
            is_right = bool(datetime.date(year, 2, day))
        except ValueError:
            is_right = False
        assert accepts(constraint, f'"{year:04}-02-{day:02}"') == is_right


def test_every_day_of_a_year_and_none_besides(bytes_only):
    constraint, first = _of(bytes_only, "date"), datetime.date(2023, 1, 1)
    days = {f"{first + datetime.timedelta(number)}" for number in range(365)}
    texts = {f"2023-{month:02}-{day:02}" for month in range(14) for day in range(33)}
    assert {text for text in texts if accepts(constraint, f'"{text}"')} == days


@pytest.mark.parametrize(
    ("name", "fits", "fails"),
    [
        ("date", ["2024-12-31"], ["0000-01-01", "2024-13-01", "2024-1-1"]),
        ("time", ["10:00:59Z", "23:59:00.123+05:30"], ["10:00:60Z", "24:00:00Z", "10:00:00"]),
        (
            "date-time",
            ["2024-02-29T10:00:00Z"],
            ["2023-02-29T10:00:00Z", "2023-06-15T10:00:60Z", "2023-06-15T10:00:00"],
        ),
        ("duration", ["P1Y2M3DT4H5M6S", "PT36H", "P4W"], ["P", "PT", "P99999999999D", "1D"]),
        (
            "email",
            ["joe.bloggs@example.com", "~x@a.io"],
            ["a@b", "a@1", ".a@b.com", "a..b@c.de", "a@[1.2.3.4]", "a@xn--a.de"],
        ),
    ],
)
def test_texts_of_a_format(bytes_only, name, fits, fails):
    constraint = _of(bytes_only, name)
    assert [text for text in fits if not accepts(constraint, json.dumps(text))] == []
    assert [text for text in fails if accepts(constraint, json.dumps(text))] == []


def _walk(constraint, chance):
    """A text, half of whose letters are signs where they may stand."""
    matcher, found = constraint.first.deep_copy(), bytearray()
    while not matcher.is_accepting() and len(found) < 300:
        ids = [number for number in allowed(matcher, constraint.vocabulary) if number < 256]
        signs = [number for number in ids if chr(number) in ":.-@T"]
        pick = [34] if 34 in ids and chance.random() < 0.4 else signs if signs and chance.random() < 0.4 else ids
        found.append(chance.choice(pick))
        matcher.consume_token(found[-1])
    return json.loads(bytes(found)) if matcher.is_accepting() else None


@pytest.mark.parametrize("name", [*TYPES, "email", "hostname"])
def test_walks_have_their_format(bytes_only, name):
    constraint, chance = _of(bytes_only, name), random.Random(len(name))
    texts = [text for _ in range(25) if (text := _walk(constraint, chance)) is not None]
    assert len(texts) > 10
    for text in texts:
        jsonschema.Draft202012Validator.FORMAT_CHECKER.check(text, name)
        if name in TYPES:
            TypeAdapter(TYPES[name]).validate_json(json.dumps(text))
        if name == "email":
            assert re.fullmatch(r"(?!\.)(?!.*\.\.)[^@\s]{1,64}(?<!\.)@([A-Za-z0-9-]{1,63}\.)+[A-Za-z]{2,63}", text)


def test_a_format_beside_a_pattern_and_lengths(bytes_only):
    schema = {"type": "string", "format": "date", "pattern": "^20", "maxLength": 10}
    constraint = compiled(bytes_only, json_schema=schema)
    assert accepts(constraint, '"2024-01-31"') and not accepts(constraint, '"1999-01-31"')
    host = compiled(bytes_only, json_schema={"type": "string", "format": "hostname"})
    labels = ".".join(["a" * 60] * 4)
    assert accepts(host, f'"{labels}"') and not accepts(host, f'"{labels}.{"b" * 20}"')
    assert np.count_nonzero(allowed(host.first.deep_copy(), bytes_only)) == 1  # a quote
