"""Objects that name their properties have no others. What is right comes from `unevaluatedProperties: false` of the
standard, as which xgrammar describes its default, and from what llama.cpp's converter makes of the same schemas.
"""

import json
import random
from copy import deepcopy

import jsonschema
import pytest

from tests.constrain.walks import accepts, compact, compiled, walk
from tokenmill.constrain.closing import close
from tokenmill.constrain.schema import read_schema

INTEGER = {"type": "integer"}
A, B = {"s": {"const": "a"}}, {"s": {"const": "b"}, "n": INTEGER}
NAMED = {"type": "object", "properties": {"a": INTEGER}}


def properties(**schemas):
    return {"type": "object", "properties": schemas}


FIXED = [
    (NAMED, [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    ({"properties": {"a": INTEGER}}, [{"a": 1}], ["a", 3, {"b": 1}]),
    (properties(), [{}], [{"a": 1}]),
    ({"type": "object"}, [{}, {"b": [1]}], [[]]),
    ({"type": "object", "additionalProperties": INTEGER}, [{}, {"b": 1}], [{"b": "x"}]),
    ({**NAMED, "additionalProperties": True}, [{"a": 1, "b": "x"}], [{"a": "x"}]),
    ({**NAMED, "additionalProperties": INTEGER}, [{"a": 1, "b": 2}], [{"b": "x"}]),
    ({**NAMED, "patternProperties": {"^x_": INTEGER}}, [{"a": 1, "x_b": 2}], [{"a": 1, "b": 2}, {"x_b": "x"}]),
    ({"type": "object", "patternProperties": {"^x_": INTEGER}}, [{}, {"x_b": 2}], [{"b": 2}]),
    ({**NAMED, "required": ["b"]}, [{"a": 1, "b": [2]}], [{"a": 1}, {"a": 1, "b": 2, "c": 3}]),
    ({**NAMED, "required": ["a"], "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ({**NAMED, "type": ["object", "null"]}, [None, {"a": 1}], [{"b": 1}]),
    (properties(a={"type": "array", "items": NAMED}), [{"a": [{"a": 1}]}], [{"a": [{"b": 1}]}]),
    (
        {"$ref": "#/$defs/n", "$defs": {"n": properties(next={"$ref": "#/$defs/n"})}},
        [{"next": {}}],
        [{"next": {"b": 1}}],
    ),
    ({"allOf": [NAMED, properties(b=INTEGER)]}, [{"a": 1, "b": 2}], [{"a": 1, "c": 1}, {"b": "x"}]),
    (
        {"allOf": [{"$ref": "#/$defs/n"}], "description": "d", "$defs": {"n": NAMED}},
        [{"a": 1}],
        [{"b": 1}],
    ),
    (
        properties(x={"$ref": "#/$defs/n"}, y={"allOf": [{"$ref": "#/$defs/n"}, properties(b=INTEGER)]})
        | {"$defs": {"n": NAMED}},
        [{"x": {"a": 1}, "y": {"a": 1, "b": 2}}],
        [{"x": {"a": 1, "b": 2}}, {"y": {"c": 1}}],
    ),
    (
        {**properties(k={"const": 1}), "required": ["k"]}
        | {"oneOf": [{**properties(**each), "required": ["s"]} for each in (A, B)]},
        [{"k": 1, "s": "b", "n": 2}, {"k": 1, "s": "a"}],
        [{"k": 1, "s": "a", "n": 2}, {"k": 1, "s": "b", "c": 2}],
    ),
    ({"anyOf": [NAMED, {"type": "null"}]}, [None, {"a": 1}], [{"b": 1}]),
    (
        {"allOf": [properties(p=NAMED), properties(p=properties(b=INTEGER))]},
        [{"p": {"a": 1, "b": 2}}],
        [{"q": 1}],
    ),
    ({"type": "array", "prefixItems": [INTEGER, INTEGER]}, [[1, 2], [1]], [[1, 2, 3], ["x"]]),
    ({"prefixItems": [INTEGER], "items": {"type": "null"}}, [[1, None]], [[1, 2]]),
    ({"type": "array", "prefixItems": [INTEGER], "minItems": 2}, [[1, "x"]], [[1]]),
]


@pytest.mark.parametrize(("schema", "comes", "never"), FIXED, ids=lambda each: str(each)[:60])
def test_an_object_has_the_properties_that_it_names(schema, comes, never, bytes_only):
    constraint = compiled(bytes_only, json_schema=schema)
    assert [each for each in comes if not accepts(constraint, compact(each))] == []
    assert [each for each in never if accepts(constraint, compact(each))] == []
    for value in comes:
        jsonschema.validate(value, schema)


@pytest.mark.parametrize(("schema", "comes", "never"), FIXED[:20], ids=lambda each: str(each)[:60])
def test_one_setting_opens_them(schema, comes, never, bytes_only):
    constraint = compiled(bytes_only, json_schema=schema, additional_properties=True)
    valid = jsonschema.Draft202012Validator(schema).is_valid
    assert [each for each in [*comes, *never] if accepts(constraint, compact(each)) != valid(each)] == []


def test_properties_come_in_the_order_of_an_open_schema(bytes_only):
    """Outer ones first, then those of the parts, whatever closes them."""
    parts = [properties(c=INTEGER), {"$ref": "#/$defs/d"}]
    for word in ("allOf", "anyOf"):
        schema = {**properties(a=INTEGER, b=INTEGER), word: parts, "$defs": {"d": properties(d=INTEGER, e=INTEGER)}}
        schema["required"] = ["a", "b"]
        for is_open in (True, False):
            constraint = compiled(bytes_only, json_schema=schema, additional_properties=is_open)
            last = '"d":1,"e":1' if word == "anyOf" else '"c":1,"d":1,"e":1'
            assert accepts(constraint, f'{{"a":1,"b":1,{last}}}'), (word, is_open)


def _random_schema(chance, depth, names):
    """A schema of objects, put together in any way."""
    made = {"type": "object"} if chance.random() < 0.5 else {}
    if chance.random() < 0.7:
        made["properties"] = {
            name: _random_schema(chance, depth - 1, names) | {"type": "object"}
            if depth > 1 and chance.random() < 0.3
            else {"type": "integer"}
            for name in chance.sample(names, chance.randint(0, 2))
        }
    if chance.random() < 0.15:
        made["additionalProperties"] = chance.choice([True, False, {"type": "integer"}])
    if chance.random() < 0.1:
        made["patternProperties"] = {"^x": {"type": "integer"}}
    if depth > 0:
        for word in ("allOf", "anyOf"):
            if chance.random() < 0.3:
                made[word] = [_random_schema(chance, depth - 1, names) for _ in range(chance.randint(1, 2))]
        if chance.random() < 0.3:
            made["$ref"] = f"#/$defs/{chance.choice('pq')}"
    return made


def _ways(schema, defs):
    """The ways to choose among the parts of a schema, each a list of schemas without parts of the same value."""
    found = [[{key: each for key, each in schema.items() if key not in ("allOf", "anyOf", "$ref", "$defs")}]]
    parts = [_ways(each, defs) for each in schema.get("allOf", ())]
    if "anyOf" in schema:
        parts.append([way for each in schema["anyOf"] for way in _ways(each, defs)])
    if "$ref" in schema:
        parts.append(_ways(defs[schema["$ref"][-1]], defs))
    for ways in parts:
        found = [[*one, *other] for one in found for other in ways]
    return found


def _unevaluated(way):
    """Their conjunction with `unevaluatedProperties: false`, where properties are named and not opened."""
    declares = any("properties" in each or "patternProperties" in each for each in way)
    opens = any(each.get("additionalProperties", False) is not False for each in way)
    return {"allOf": way} | ({"unevaluatedProperties": False} if declares and not opens else {})


def test_what_comes_is_what_the_standard_would_not_call_unevaluated():
    """In each way to choose among parts. Random schemas and values; openings are in none that has a choice."""
    chance, num_valid, num_invalid, names = random.Random(1), 0, 0, ["a", "b", "c", "x1"]
    for _ in range(600):
        defs = {name: _random_schema(chance, 0, names) for name in "pq"}
        schema = _random_schema(chance, 2, names) | {"type": "object", "$defs": defs}
        if "anyOf" in (text := json.dumps(schema)) and "additionalProperties" in text:
            continue
        closed = deepcopy(schema)
        close(closed)
        found, given = jsonschema.Draft202012Validator(closed), jsonschema.Draft202012Validator(schema)
        wanted = [jsonschema.Draft202012Validator(_unevaluated(way) | {"$defs": defs}) for way in _ways(schema, defs)]
        for _ in range(12):
            value = {name: chance.choice([1, 1, {}]) for name in chance.sample([*names, "z"], chance.randint(0, 3))}
            is_wanted = any(each.is_valid(value) for each in wanted)
            assert found.is_valid(value) == is_wanted, (schema, closed, value)
            assert not is_wanted or given.is_valid(value)
            num_valid, num_invalid = num_valid + is_wanted, num_invalid + given.is_valid(value) - is_wanted
    assert num_valid > 500 and num_invalid > 500


def test_what_fits_some_text_does_so_when_it_is_closed(bytes_only):
    """Walks through closed schemas end, and their texts fit the schema as it was given."""
    chance, ended = random.Random(2), 0
    for number in range(60):
        names = ["a", "b", "c", "x1"]
        schema = _random_schema(chance, 2, names)
        schema |= {"type": "object", "$defs": {name: _random_schema(chance, 0, names) for name in "pq"}}
        text, ends = walk(compiled(bytes_only, json_schema=schema), number)
        if ends:
            ended += 1
            jsonschema.validate(json.loads(text), schema)
    assert ended > 40


def test_a_wide_choice_and_a_long_chain_take_no_time_of_their_square():
    last = 3_000
    chain = {"d0": NAMED} | {f"d{n + 1}": {"$ref": f"#/$defs/d{n}"} for n in range(last)}
    schema = {"allOf": [{"$ref": f"#/$defs/d{last}"}], "description": "x", "$defs": chain}
    assert read_schema(schema)["$defs"]["d0"]["additionalProperties"] is False
    wide = properties(a=INTEGER) | {"anyOf": [properties(**{f"p{n}": INTEGER}) for n in range(last)]}
    assert all(len(each["properties"]) == 2 for each in read_schema(wide)["anyOf"])
    joined = {"allOf": [properties(**{f"p{n}": INTEGER}) for n in range(last)]}
    assert len(read_schema(joined)["properties"]) == last
