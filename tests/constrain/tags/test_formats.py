"""Every type of format against xgrammar 0.2.8, whose answers stand in xgrammar.jsonl, and what is refused.

A line has a format, texts that fit it there and texts that do not. `narrower`: texts that fit it there and not here,
which docs/structured-output.md tells: white space around values in XML tags is one line break at most.
"""

import json
from pathlib import Path

import pytest

from tests.constrain.walks import accepts, compiled
from tokenmill.constrain.tags.formats import TYPES
from tokenmill.constrain.tags.plain import MAX_TIMES
from tokenmill.constrain.tags.reader import MAX_DEPTH, MAX_FORMATS
from tokenmill.errors import ConfigError

CASES = [json.loads(line) for line in (Path(__file__).parent / "xgrammar.jsonl").read_text("utf-8").splitlines()]
OF_TOKENS = {"token", "exclude_token", "any_tokens", "token_triggered_tags", "token_dispatch"}
ANY, INTEGER = {"type": "any_text"}, {"type": "json_schema", "json_schema": {"type": "integer"}}
TAG = {"begin": "<f=a>", "content": INTEGER, "end": "</f>"}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": [TAG]}


@pytest.mark.parametrize("case", CASES, ids=lambda case: json.dumps(case["format"])[9:60])
def test_texts_fit_as_they_do_in_xgrammar(bytes_only, case):
    constraint = compiled(bytes_only, structural_tag={"type": "structural_tag", "format": case["format"]})
    for text in case["fits"]:
        assert accepts(constraint, text), text
    for text in (*case["fails"], *case.get("narrower", ())):
        assert not accepts(constraint, text), text


def test_every_type_has_a_case():
    written = json.dumps([case["format"] for case in CASES])
    assert {kind for kind in TYPES if f'"type": "{kind}"' in written} == TYPES.keys() - OF_TOKENS


def tag(**fields):
    return {"type": "tag", "begin": "<", "content": ANY, "end": ">", **fields}


def row(*elements):
    return {"type": "sequence", "elements": list(elements)}


REFUSED = [
    (3, r"format must be an object, \{\"type\": …\}"),
    ({}, r"format.type = None is not one of const_string, json_schema"),
    ({"type": "any_txt"}, r"format.type = 'any_txt' is not one of .*; is 'any_text' meant\?"),
    (row(ANY, {"type": "const_string"}), r"format.elements\[1\].value must be a text"),
    (row(), r"format.elements must be a list that is not empty"),
    ({"type": "or", "elements": {}}, r"format.elements must be a list that is not empty"),
    ({"type": "const_string", "value": "a", "valeu": 1}, r"format has no key 'valeu'; const_string has value; is 'val"),
    ({"type": "optional"}, r"format.content must be an object"),
    (tag(begin=3), r"format.begin must be a text or"),
    (tag(end=[]), r"format.end must be a text, a list of texts, or"),
    (tag(end=[3]), r"format.end must be a text, a list of texts, or"),
    (tag(end=""), r"format.end is empty, and the content has no end of its own"),
    (tag(end="", content=row(INTEGER, ANY)), r"format.end is empty, and the content has no end of its own"),
    ({**ANY, "excludes": [""]}, r"format.excludes\[0\] must be a text that is not empty"),
    ({**ANY, "excludes": "a"}, r"format.excludes must be a list"),
    ({**ANY, "max_chars": -1}, r"format.max_chars is from 0 to"),
    ({**ANY, "max_chars": 1.5}, r"format.max_chars must be a whole number"),
    ({**ANY, "max_chars": True}, r"format.max_chars must be a whole number"),
    ({**ANY, "max_tokens": 5}, r"format.max_tokens is not supported: max_chars is"),
    ({**INTEGER, "style": "cohere_xml"}, r"format.style = 'cohere_xml' is not supported: json, qwen_xml"),
    ({**INTEGER, "any_order": True}, r"format.any_order is not supported"),
    ({**INTEGER, "excludes": ["a"]}, r"format.excludes is not supported here"),
    ({**INTEGER, "json_schema": {"not": 1}}, r"format.json_schema at #: the keyword 'not' is not im"),
    ({**INTEGER, "json_schema": 3}, r"format.json_schema must be a JSON schema"),
    ({**INTEGER, "json_schema": False}, r"format.json_schema at #: no text with an end fits"),
    ({"type": "regex", "pattern": ""}, r"format.pattern must be a text that is not empty"),
    ({"type": "regex", "pattern": "("}, r"format.pattern = '\(': .*unclosed group"),
    ({"type": "regex", "pattern": "(?=a)b"}, r"format.pattern = .*look-ahead, .* not of names or in tags"),
    ({"type": "regex", "pattern": r"[^\s\S]"}, r"format.pattern is a part that no text fits"),
    ({"type": "grammar", "grammar": "start: /a/"}, r"format.grammar must be a grammar in EBNF \(GBNF\)"),
    ({"type": "grammar", "grammar": "root ::= ("}, r"format.grammar as GBNF it is wrong"),
    ({"type": "grammar", "grammar": "root ::= a"}, r"format.grammar as GBNF it is wrong: there is no rule 'a'"),
    ({**TRIGGERED, "triggers": []}, r"format.triggers must be a list that is not empty"),
    ({**TRIGGERED, "tags": []}, r"format.tags must be a list that is not empty"),
    ({**TRIGGERED, "tags": [3]}, r"format.tags\[0\] must be an object, \{\"type\": \"tag\", …\}"),
    ({**TRIGGERED, "tags": [{**TAG, "type": "or"}]}, r"format.tags\[0\].type = 'or' is not one of tag"),
    ({**TRIGGERED, "tags": [{**TAG, "begin": {"token": 1}}]}, r"format.tags\[0\].begin must be a text here"),
    ({**TRIGGERED, "triggers": ["<g="]}, r"format.tags\[0\].begin = '<f=a>' begins with none of the triggers"),
    ({**TRIGGERED, "triggers": ["<f=", "<f"]}, r"format.tags\[0\].begin = '<f=a>' begins with both '<f=' and '<f'"),
    ({**TRIGGERED, "triggers": ["<f=", "<f="]}, r"format.triggers has a text twice"),
    ({**TRIGGERED, "triggers": ["<f=", "<g"]}, r"format.triggers\[1\] = '<g' begins no tag"),
    ({**TRIGGERED, "excludes": ["<f="]}, r"format.triggers\[0\] = '<f=' is excluded, too"),
    ({**TRIGGERED, "excludes": ["f"]}, r"format.triggers\[0\] = '<f=' holds 'f', so that it could never come"),
    (
        tag(end="\n<f=>", content=TRIGGERED),
        r"format.content.triggers\[0\] = '<f=' stands inside of .*, which is excluded",
    ),
    (tag(end="<", content=TRIGGERED), r"format.content.triggers\[0\] = '<f=' holds '<', so that it could never come"),
    ({**TRIGGERED, "at_least_one": 1}, r"format.at_least_one must be true or false"),
    ({"type": "tags_with_separator", "tags": [TAG]}, r"format.separator must be a text"),
    ({"type": "dispatch", "rules": [["a"]]}, r"format.rules\[0\] must be a list of two"),
    ({"type": "dispatch", "rules": [["", ANY]]}, r"format.rules\[0\]\[0\] must be a text that is not empty"),
    ({"type": "dispatch", "rules": [["a", INTEGER]] * 2}, r"format.rules has a pattern twice"),
    ({"type": "repeat", "min": 2, "max": 1, "content": ANY}, r"format.min = 2 is more than max = 1"),
    ({"type": "repeat", "min": 2, "content": ANY}, r"format.max must be a whole number"),
    ({"type": "repeat", "min": 0, "max": MAX_TIMES + 1, "content": ANY}, r"format.max is at most 2,000"),
    (
        {"type": "repeat", "min": 0, "max": 99, "content": {"type": "repeat", "min": 0, "max": 99, "content": ANY}},
        "9,801",
    ),
    (
        {**ANY, "max_chars": 65, "excludes": ["a"]},
        r"format counts more than 64 characters in a text that excludes some",
    ),
    (tag(content=row({**ANY, "max_chars": 65}, INTEGER)), r"format.begin counts more than 64 characters"),
    ({**ANY, "excludes": ["a"] * 101}, r"format.excludes has 101 texts; 100 are possible"),
    (
        {"type": "dispatch", "rules": [[f"<{n}>", INTEGER] for n in range(17)]},
        r"format.rules has 17 texts; 16 are possib",
    ),
    (row(*[ANY] * MAX_FORMATS), r"format.elements\[999\] is one of more than 1,000 formats and tags"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message[:60] for _, message in REFUSED])
def test_refusals_name_the_place(bytes_only, given, message):
    with pytest.raises(ConfigError, match=message) as caught:
        compiled(bytes_only, structural_tag={"format": given})
    assert len(str(caught.value)) < 800


def test_formats_are_nested_as_deep_as_allowed(bytes_only):
    given = ANY
    for _ in range(MAX_DEPTH - 1):
        given = {"type": "optional", "content": given}
    assert accepts(compiled(bytes_only, structural_tag={"format": given}), "a")
    with pytest.raises(ConfigError, match=f"content is nested more than {MAX_DEPTH} deep"):
        compiled(bytes_only, structural_tag={"format": {"type": "optional", "content": given}})
    for _ in range(5000):
        given = {"type": "or", "elements": [given]}
    with pytest.raises(ConfigError):
        compiled(bytes_only, structural_tag={"format": given})


@pytest.mark.parametrize("given", [{"format": ANY, "triggers": []}, {"format": ANY, "type": "tag"}])
def test_a_format_stands_alone(bytes_only, given):
    with pytest.raises(ConfigError, match=r"no key 'triggers' beside a format|its type is 'structural_tag'"):
        compiled(bytes_only, structural_tag=given)


def test_a_hundred_tools_are_read(bytes_only):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    content = {"type": "json_schema", "json_schema": schema}
    tags = [{"begin": f"<f={number}>", "content": content, "end": "</f>"} for number in range(100)]
    constraint = compiled(bytes_only, structural_tag={"format": {**TRIGGERED, "tags": tags}})
    assert accepts(constraint, 'a<f=1>{}</f><f=12>{"a":"b"}</f>') and not accepts(constraint, "<f=100>{}</f>")


def test_many_characters_are_counted_up_to_the_end_of_a_tag(bytes_only):
    few = {**ANY, "max_chars": 3000}
    given = row(tag(begin="<t>", content=few, end=["</t>", ";"]), TRIGGERED)
    constraint = compiled(bytes_only, structural_tag={"format": given})
    for text in ("<t></t>", f"<t>{'é' * 3000}</t>x<f=a>1</f>", "<t>\n</t;", "<t>a</t>b</t>"):
        assert accepts(constraint, text), text
    for text in (f"<t>{'é' * 3001}</t>", "<t>a</t", "<t>a;<f=a>x</f>"):
        assert not accepts(constraint, text), text


def test_a_schema_that_llguidance_refuses_is_named(bytes_only):
    bad = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}}, "required": ["a"]}
    given = {"format": {**TRIGGERED, "tags": [TAG, {**TAG, "content": {"type": "json_schema", "json_schema": bad}}]}}
    old = {"structures": [{"begin": "<f", "schema": {}}, {"begin": "<f", "schema": bad}], "triggers": ["<f"]}
    for value, place in ((given, r"format.tags\[1\].content.json_schema"), (old, r"structures\[1\].schema")):
        with pytest.raises(ConfigError, match=rf"{place} at #/properties/a: Unsatisfiable schema: minLength \(3\)"):
            compiled(bytes_only, structural_tag=value)


def test_the_format_of_the_page_is_read(bytes_only):
    page = (Path(__file__).parents[3] / "docs" / "structured-output.md").read_text("utf-8")
    constraint = compiled(bytes_only, structural_tag=page.partition("```json\n")[2].partition("```")[0])
    assert accepts(constraint, '<think>hm</think>One moment.<function=weather>{"city":"Rome"}</function>')
    assert not accepts(constraint, "<think>hm</think><function=time>{}</function>")


def test_a_call_as_qwen_writes_it(bytes_only):
    names = {f"p{number}": {"type": "string" if number % 2 else "array"} for number in range(12)}
    schema = {"type": "object", "properties": {"city": {"type": "string"}, **names}, "required": ["city"]}
    content = {"type": "json_schema", "style": "qwen_xml", "json_schema": schema}
    given = tag(begin="<tool_call>\n<function=f>", content=content, end="\n</function>\n</tool_call>")
    constraint = compiled(bytes_only, structural_tag={"format": given})
    for inner in ("Rome", "\nRome\n", "</param"):
        more = "\n<parameter=p2>\n[]\n</parameter>\n<parameter=p11>\nx\n</parameter>"
        for last in ("", more):
            text = f"<tool_call>\n<function=f>\n<parameter=city>{inner}</parameter>{last}\n</function>\n</tool_call>"
            assert accepts(constraint, text), text
            assert not accepts(constraint, text.replace("city", "town"))
