"""Numbers of schemas. Right are jsonschema and exact arithmetic: for multipleOf, jsonschema divides floats."""

import json
import random
from decimal import Decimal
from fractions import Fraction

import jsonschema
import pytest

from tests.constrain.walks import accepts, compiled
from tokenmill.errors import ConfigError

BIG = 2**53 + 1
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
UINT64 = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}


@pytest.mark.parametrize(
    ("schema", "fits", "fails"),
    [
        ({"const": BIG}, [str(BIG)], [str(BIG - 1), str(BIG + 1)]),
        ({"enum": [10**18 + 1, 10**18 + 2]}, [str(10**18 + 2)], [str(10**18), str(10**18 + 3)]),
        (
            {"const": {"id": BIG, "of": [BIG + 2]}},
            [f'{{"id":{BIG},"of":[{BIG + 2}]}}'],
            [f'{{"id":{BIG - 1},"of":[{BIG + 2}]}}'],
        ),
        ({"enum": [BIG, 5, "5"], "maximum": BIG - 1}, ["5", '"5"'], [str(BIG)]),
        ({"type": "integer", "minimum": BIG}, [str(BIG), str(10**30)], [str(BIG - 1), "0", f"-{BIG}"]),
        ({"type": "integer", "exclusiveMinimum": BIG}, [str(BIG + 1)], [str(BIG)]),
        (INT64, ["7", "0", str(2**63 - 1), str(-(2**63))], [str(2**63), str(-(2**63) - 1), "-0", "007"]),
        (UINT64, ["0", str(2**63), str(2**64 - 1)], ["-1", str(2**64)]),
        ({"type": "integer", "maximum": -(10**19)}, [str(-(10**19))], [str(-(10**19) + 1), "5"]),
        (
            {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
            ["0.5", "0.50", "0.0001"],
            ["0", "0.0", "-0.0", "0.51"],
        ),
        (
            {"type": "number", "exclusiveMinimum": 99, "exclusiveMaximum": 99.75},
            ["99.5", "99.01"],
            ["99", "99.0", "99.75", "100"],
        ),
        ({"type": "number", "exclusiveMaximum": 1}, ["0.99", "-7"], ["1", "1.0", "0.99999999999999999999"]),
        ({"type": "number", "minimum": 284.6, "maximum": 447.28}, ["447.2", "284.6", "300"], ["447.281", "284.59"]),
        (
            {"type": "number", "maximum": 0.5, "multipleOf": 0.25},
            ["0.5", "0.50", "0.25", "-3", "0"],
            ["0.75", "0.3", "0.05"],
        ),
        ({"type": "number", "multipleOf": 0.07}, ["0.07", "0.7", "7", "-0.14"], ["0.1", "0.08", "1"]),
        ({"type": "number", "multipleOf": 19.99}, ["19.99", "39.98", "1999"], ["20", "19.9"]),
        (
            {"type": "integer", "multipleOf": 10**10},
            [str(10**10), "0", str(2 * 10**11)],
            ["1", str(10**9), str(10**10 + 1)],
        ),
        (
            {"type": "integer", "multipleOf": 7, "minimum": BIG},
            [str(BIG + (-BIG) % 7)],
            [str(BIG + 1 + (-BIG) % 7), "7"],
        ),
        (
            {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 10**12},
            ["0", "7", "700"],
            ["-7", "8", str(7 * 10**12)],
        ),
        ({"allOf": [{"multipleOf": 6}, {"multipleOf": 4}], "type": "integer"}, ["12", "-24"], ["6", "4"]),
        ({"type": "integer", "multipleOf": 0.5}, ["3"], ["0.5"]),
        (
            {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
            ["1.5", "3.4028234663852886e38", "-1e-7"],
            ["3.5e38", "1e39"],
        ),
        (
            {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
            ["1.5", "1.7976931348623157e+308", "6.02e23"],
            ["1.8e308", "1e309"],
        ),
        ({"type": "number", "maximum": 1e19}, ["1.5", "10000000000000000000"], ["10000000000000000001", "1.1e19"]),
        (
            {"allOf": [{"minimum": 0.25}, {"exclusiveMaximum": 0.75}], "type": ["number", "null"]},
            ["null", "0.25", "0.74"],
            ["0.75", "0.2", '"x"'],
        ),
        ({"anyOf": [{"const": BIG}, {"type": "string"}]}, [str(BIG), '"a"'], [str(BIG - 1)]),
        ({"exclusiveMaximum": 0}, ["-1", '"a"', "null", "[1]", "{}"], ["0", "1"]),
        (
            {"$defs": {"id": {"minimum": BIG}}, "$ref": "#/$defs/id", "type": "integer", "maximum": BIG + 1},
            [str(BIG)],
            [str(BIG - 1), str(BIG + 2)],
        ),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True, "maximum": 2**60}, ["6"], ["5", str(2**60 + 1)]),
    ],
    ids=str,
)
def test_numbers_are_exact(bytes_only, schema, fits, fails):
    constraint = compiled(bytes_only, json_schema=schema)
    assert [text for text in fits if not accepts(constraint, text)] == []
    assert [text for text in fails if accepts(constraint, text)] == []


def _bound(chance):
    return chance.choice(
        [
            chance.randint(-20, 20),
            round(chance.uniform(-20, 20), chance.randint(1, 3)),
            chance.choice([-1, 1]) * (2 ** chance.choice([53, 63, 64]) + chance.randint(-2, 2)),
            chance.choice([1e19, -1e23, 3.4028234663852886e38, 0, 1, 0.1, 0.5]),
        ]
    )


def _exact(value):
    return Fraction(Decimal(repr(value))) if isinstance(value, float) else Fraction(value)


def _fits(schema, text):
    """By exact arithmetic, and by jsonschema, which reads floats, for bounds."""
    value = Fraction(Decimal(text))
    tests = {
        "minimum": lambda bound: value >= bound,
        "maximum": lambda bound: value <= bound,
        "exclusiveMinimum": lambda bound: value > bound,
        "exclusiveMaximum": lambda bound: value < bound,
        "multipleOf": lambda step: (value / step).denominator == 1,
    }
    is_right = all(test(_exact(schema[key])) for key, test in tests.items() if key in schema)
    others = {key: each for key, each in schema.items() if key != "multipleOf"}
    return is_right and jsonschema.Draft202012Validator(others).is_valid(json.loads(text))


def _near(bound, step):
    """Texts of numbers at and beside a bound, and of the multiples beside it."""
    value = _exact(bound)
    least = value // step * step
    for each in (value, least):
        for other in (0, 1, -1, Fraction(1, 10), Fraction(-1, 1000), Fraction(1, 10**18), -Fraction(1, 10**18), step):
            found = each + other
            whole, rest = divmod(abs(found.numerator), found.denominator)
            digits = str(rest * 10**40 // found.denominator).zfill(40).rstrip("0")
            text = f"{'-' if found < 0 else ''}{whole}{'.' if digits else ''}{digits}"
            yield text
            yield text + ("0" if digits else ".0")


@pytest.mark.parametrize("seed", range(6))
def test_random_numbers_near_their_bounds(bytes_only, seed):
    """No text that does not fit is taken; short whole numbers that fit are."""
    chance, num_taken = random.Random(seed), 0
    for _ in range(25):
        low, high = sorted([_bound(chance), _bound(chance)])
        schema = {"type": chance.choice(["number", "integer"])}
        schema |= {chance.choice(["minimum", "exclusiveMinimum"]): low} if chance.random() < 0.8 else {}
        schema |= {chance.choice(["maximum", "exclusiveMaximum"]): high} if chance.random() < 0.8 else {}
        step = chance.choice([1, 3, 7, 10, 0.5, 0.25, 0.01, 0.07, 12, 100, 1.5])
        schema |= {"multipleOf": step} if chance.random() < 0.4 else {}
        texts = {*_near(low, _exact(step)), *_near(high, _exact(step)), "0", "1", "-1.5", "0.5"} - {"-0"}
        try:
            constraint = compiled(bytes_only, json_schema=schema)
        except ConfigError as error:
            assert "nsatisfiable" in str(error)
            assert not any(_fits(schema, text) for text in texts)
            continue
        for text in texts:
            taken, is_right = accepts(constraint, text), _fits(schema, text)
            assert is_right or not taken, (schema, text)
            num_taken += taken
            if is_right and not taken and "." not in text and len(text) < 17:
                pytest.fail(f"{schema} does not take {text}")
    assert num_taken > 100
