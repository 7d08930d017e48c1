"""Random walks through the grammars of all formats: what they admit is parsed, and its arguments fit the schemas."""

import json
import os
from random import Random

import jsonschema
import pytest
from llguidance import LLMatcher

from tests.text.tools.answers import joined
from tests.text.tools.byte_grammar import END, ids_of, tokenizer, tokens_of
from tests.text.tools.test_formats import FRAMED, NAMES, control_of, form_of
from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.functions import ToolChoice, read_functions
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.parser import Parser

WALKS = int(os.environ.get("TOKENMILL_TOOL_WALKS", "60"))
MOST = 400  # steps
THINKING = Thinking("<think>", "</think>")
DEFINED = {"$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
FUNCTIONS = read_functions(
    [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in {
            "now": None,
            "a.b-c": {"type": "object", "properties": {}},
            "write": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "append": {"type": "boolean"},
                },
                "required": ["path", "content"],
                "additionalProperties": False,
            },
            "find": {
                "type": "object",
                "properties": {
                    "mode": {"type": "string", "enum": ["all", "first", "al"]},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 99},
                    "where": {"$ref": "#/$defs/place"},
                    "words": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
                },
                **DEFINED,
            },
            "mix": {
                "type": "object",
                "properties": {
                    "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                    "number": {"type": "number"},
                    "nothing": {"type": "null"},
                    "maybe": {"type": ["boolean", "null"]},
                    "deep": {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}},
                },
                "required": ["number", "maybe"],
                "additionalProperties": False,
            },
        }.items()
    ]
)
LOOSE = read_functions(
    [
        {"type": "function", "function": {"name": name, "parameters": parameters, "strict": False}}
        for name, parameters in {
            "loose": {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
            "now": None,
        }.items()
    ]
)


def snippets(name, functions):
    """Texts that a walk tries to add at once, since nobody spells a mark by chance."""
    form = form_of(name)
    texts = [form.mark, form.opening, form.closing, form.comma or "", form.lead, *form.texts(), "<think>", "</think>"]
    body = form.body
    pad, end = getattr(body, "pad", ""), getattr(body, "value_end", "")
    texts += [pad + end, *'"\n}]),:[{( ', "null", "True", "1", '": "', *(function.name for function in functions)]
    if functions is LOOSE:  # arguments of which one may be there twice
        texts += ["a", "a=1", ", a=", "a:1", '"a": 1']
        texts += [f"{body.key_begin}a{body.key_end}{pad}"] if hasattr(body, "key_begin") else []
    return [text for text in dict.fromkeys(texts) if text]


def walk(grammar, control, rng, texts):
    """The text of a walk, and whether it came to an end."""
    matcher = LLMatcher(tokenizer(control), grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    spelled = {number: text.encode() for text, number in ids_of(control).items()}
    tokens = []
    while len(tokens) < MOST:
        if matcher.is_accepting() and rng.random() < 0.4:
            break
        added = tokens_of(rng.choice(texts), control) if rng.random() < 0.9 else None
        if added and matcher.validate_tokens(added) == len(added):
            assert matcher.consume_tokens(added)
            tokens += added
            continue
        mask = matcher.compute_bitmask()
        assert not matcher.is_error(), matcher.get_error()
        found = [number for number in range(END + 1 + len(control)) if mask[number // 8] >> number % 8 & 1]
        others = [number for number in found if number != END]
        if not others:
            assert found, "nothing may follow"
            break
        printable = [number for number in others if 32 <= number < 127 or number > END]
        tokens.append(rng.choice(printable or others))
        assert matcher.consume_token(tokens[-1])
    whole = b"".join(spelled.get(token, bytes([token & 255])) for token in tokens)
    return whole.decode(errors="replace"), matcher.is_accepting()


def parsed(name, functions, text, rng, is_trusted, thinking):
    parser, parts, at = Parser(form_of(name), functions, thinking=thinking, is_trusted=is_trusted), [], 0
    while at < len(text):
        length = rng.choice([1, 2, 3, 8, 40])
        parts += parser.push(text[at : at + length])
        at += length
    found = joined(parts + parser.finish())
    return found.text, found.thinking, [(call.name, call.arguments) for call in found.calls]


def check(name, seed, functions=FUNCTIONS):
    rng = Random(f"{name} {seed}")
    wanted = rng.choice([ToolChoice("required"), ToolChoice("required"), ToolChoice(), ToolChoice(parallel=False)])
    control = rng.choice([(), control_of(name)])
    thinking = THINKING if rng.random() < 0.3 and name in FRAMED else None
    form = form_of(name)
    grammar = calls_grammar(form, functions, wanted, control=ids_of(control), thinking=thinking)
    text, is_whole = walk(grammar, control, rng, snippets(name, functions))
    if not is_whole:
        return 0
    found = parsed(name, functions, text, rng, True, thinking)
    assert parsed(name, functions, text, rng, False, thinking) == found, text
    told, _, calls = found
    assert calls or wanted.mode == "auto", text
    assert not (told and calls and wanted.mode == "required" and name in FRAMED), (text, found)
    schemas = {function.name: function.schema for function in functions}
    for called, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas[called])
    if not calls and name in FRAMED:
        assert form.is_alone or form.mark not in told, text
    return len(calls)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_grammar_admits_is_parsed(name):
    for seed in range(5):
        check(name, seed)


@pytest.mark.parametrize("name", NAMES)
def test_without_strict_a_call_is_one_of_a_function_with_any_object(name):
    for seed in range(5):
        check(name, seed, LOOSE)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_much_that_a_grammar_admits_is_parsed(name):
    assert sum(check(name, seed) for seed in range(WALKS)) > WALKS / 10
    assert sum(check(name, seed, LOOSE) for seed in range(WALKS // 2)) > WALKS / 20
