"""Patterns that look ahead, and patterns beside formats. Python's re and pydantic tell what fits."""

import itertools
import json
import re
from decimal import Decimal
from typing import Annotated

import jsonschema
import pydantic
import pytest

from tests.constrain.walks import accepts, compact, compiled, walk
from tokenmill.errors import ConfigError
from tokenmill.text.schema.ahead import spelled

PATTERNS = [
    r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$",  # pydantic's Decimal
    r"^(?=.*[A-Z])(?=.*\d).{4,}$",
    r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d)(?=.*[@$!%*?&])[A-Za-z\d@$!%*?&]{4,}$",
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",  # zod's
    r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)$",  # zod's duration
    r"^(?=.{1,9}$)[a-z]+(?:\.[a-z]+)*$",
    r"^(?!admin$)\w+$",
    r"^(?!.*\s)[^\d]+$",
    r"^(?:(?!ab)[ab]){1,5}$",
    r"^(?:(?=a)\w+|(?!a)[^a]*)$",
    r"1(?=\.)",
    r"a(?!b)",
    r"(?![^a])a$",
    r"^(?=(?!ab)a)\w+$",
    r"(?!$)^a*",
]
TEXTS = [
    *(
        "",
        "+",
        "-.",
        "+1",
        "0",
        "-0.5",
        "1.",
        ".5",
        "1.2.3",
        "007",
        "1\n",
        "Abc1",
        "abc1",
        "ABCD",
        "Ab1!",
        "aB3$x",
        "A1éé",
    ),
    *(
        "a.b@x.de",
        ".a@x.de",
        "a..b@x.de",
        "a@x",
        "P1D",
        "PT",
        "P",
        "PT5M",
        "P2W",
        "P1YT1S",
        "PT1D",
        "a.b",
        "abcdefghij",
    ),
    *(
        "admin",
        "admins",
        "admin\n",
        "a b",
        "ab",
        "ba",
        "aab",
        "bbaba",
        "aaaaaa",
        "é",
        "b",
        "c",
        "\n",
        '"',
        "\\",
        "a\u2028",
    ),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_fit_as_they_fit_by_python(bytes_only, pattern):
    constraint = compiled(bytes_only, json_schema={"type": "string", "pattern": pattern})
    fitting = [text for text in TEXTS if re.search(pattern, text)]
    taken = [text for text in TEXTS if accepts(constraint, compact(text))]
    assert not set(taken) - set(fitting)
    assert {text for text in fitting if text.isascii() and "\n" not in text} <= set(taken)
    assert taken
    for seed in range(20):
        text, ended = walk(constraint, seed)
        assert not ended or re.search(pattern, json.loads(text)), text


@pytest.mark.parametrize("pattern", [pattern for pattern in PATTERNS if not pattern.startswith("1")])
def test_a_regex_may_look_ahead(bytes_only, pattern):
    constraint = compiled(bytes_only, regex=pattern)
    taken = [text for text in TEXTS if accepts(constraint, text)]
    fitting = [text for text in TEXTS if re.fullmatch(pattern, text)]
    assert not set(taken) - set(fitting)
    assert {text for text in fitting if text.isascii() and "\n" not in text} <= set(taken)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_spelled_is_spelled_again(pattern):
    assert spelled(spelled(pattern)) == spelled(pattern)


DECIMAL = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": PATTERNS[0]}]}
Price = Annotated[Decimal, pydantic.WithJsonSchema(DECIMAL)]  # as pydantic 2.12 and 2.13 have it


class Bill(pydantic.BaseModel):
    price: Price
    discount: Price | None
    code: str = pydantic.Field(min_length=3, max_length=6)


def test_decimals_of_pydantic(bytes_only):
    constraint = compiled(bytes_only, json_schema=Bill.model_json_schema())
    for seed in range(40):
        text, ended = walk(constraint, seed, most=400)
        if ended:
            value = json.loads(
                text, parse_float=lambda _: 1, parse_int=lambda _: 1
            )  # numbers may be infinite to pydantic
            Bill.model_validate(value)
    for price, is_taken in (("12.50", True), ("-.", False), ("", False), ("1e5", False), (7, True)):
        assert accepts(constraint, compact({"price": price, "discount": None, "code": "abc"})) == is_taken


def test_beside_lengths_constants_formats_and_other_patterns(bytes_only):
    ahead = r"^(?=.*\d)(?!.*bb)"
    schemas = [
        {"pattern": ahead, "minLength": 2, "maxLength": 3},
        {"pattern": ahead, "enum": ["a1", "bb1", "b", "1"]},
        {"pattern": ahead, "allOf": [{"pattern": "^[ab1]+$"}, {"pattern": "a"}]},
        {"pattern": ahead, "format": "ipv4"},
        {"anyOf": [{"pattern": ahead}, {"pattern": "^b+$"}]},
        {"pattern": ahead, "not": False},
    ]
    texts = ["".join(each) for n in range(5) for each in itertools.product("ab1", repeat=n)] + ["1.2.3.4", "1.2.3"]
    for given in schemas:
        schema = {"type": "string", **given}
        check = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        constraint = compiled(bytes_only, json_schema=schema)
        for text in texts:
            assert accepts(constraint, compact(text)) == check.is_valid(text), (schema, text)


@pytest.mark.parametrize(
    "schema, reason",
    [
        ({"type": "string", "pattern": "^(?=.*a)(?!.*a)"}, "no value fits it"),
        ({"type": "string", "pattern": "^(?=a)", "format": "uri"}, "the format 'uri' is not possible beside"),
        ({"type": "string", "pattern": "^(?:(?!ab)[ab])*$"}, "look-ahead inside of a repetition is not possible"),
        ({"type": "string", "pattern": "a(?!^b)"}, r"\^ in look-ahead is possible at the beginning"),
        ({"type": "object", "patternProperties": {"^(?=a)": True}}, "look-ahead, .* not of names"),
        ({"type": "string", "pattern": "(?<=a)b"}, "look-behind"),
    ],
)
def test_what_is_not_possible_is_said(bytes_only, schema, reason):
    with pytest.raises(ConfigError, match=reason):
        compiled(bytes_only, json_schema=schema)


ZOD = r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


def test_a_pattern_beside_a_format_of_which_llguidance_cannot_tell_whether_a_text_fits(bytes_only):
    schema = {"type": "object", "properties": {"mail": {"type": "string", "format": "email", "pattern": ZOD}}}
    constraint = compiled(bytes_only, json_schema=schema | {"required": ["mail"]})
    for mail, is_taken in (
        ("a.b@x.de", True),
        ("a b@x.de", False),
        ("!@x.de", False),
        ("a@x_y.de", False),
        ("a", False),
    ):
        assert accepts(constraint, compact({"mail": mail})) == is_taken
    for seed in range(40):
        text, ended = walk(constraint, seed, most=400)
        assert not ended or re.search(ZOD, json.loads(text)["mail"])
    with pytest.raises(ConfigError, match=r"Unsatisfiable schema"):
        compiled(bytes_only, json_schema={"type": "string", "format": "email", "pattern": r"^\d+$"})
