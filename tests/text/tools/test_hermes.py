"""Hermes' calls: what the grammar admits is what is parsed, however the text is cut."""

import json
from random import Random

import pytest

from tests.text.tools.answers import answer, pushed
from tests.text.tools.byte_grammar import admitted, ids_of
from tokenmill.text.parts import CallArguments, CallBegin, TextPart
from tokenmill.text.thinking import Thinking
from tokenmill.text.tools.functions import ToolChoice, read_functions
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.hermes import HERMES
from tokenmill.text.tools.parser import Parser

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "number"}, "more": {"type": "array"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get.weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
]
FUNCTIONS = read_functions(TOOLS)
THINKING = Thinking("<think>", "</think>")
WEATHER = '<tool_call>\n{"name": "get.weather", "arguments": {"city": "A}\\"<tool_call>", "days": 1.50}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
ARGUMENTS = '{"city": "A}\\"<tool_call>", "days": 1.50}'
ANSWERS = {
    "Hello.": ("Hello.", "", []),
    WEATHER: ("", "", [("get.weather", ARGUMENTS)]),
    f"I look.\n{WEATHER}\n{NOW}": ("I look.", "", [("get.weather", ARGUMENTS), ("now", "{}")]),
    f"<think>\nA <tool_call>?\n</think>\n\n{NOW}": ("", "A <tool_call>?", [("now", "{}")]),
    f"<think>\nHm.\n</think>\n\nSo\n{NOW}": ("So", "Hm.", [("now", "{}")]),
    "<think>\n\n</think>\n\nNo <tools>.": ("No <tools>.", "", []),
}


def parsed(text, cut=None, functions=FUNCTIONS, **more):
    """The parts of an answer; cut: Random that cuts it."""
    return pushed(Parser(HERMES, functions, thinking=THINKING, **more), text, cut)


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("text", ANSWERS)
def test_answers_are_parsed_however_they_are_cut(text, is_trusted):
    assert answer(parsed(text, is_trusted=is_trusted)) == ANSWERS[text]
    for seed in range(20):
        assert answer(parsed(text, Random(seed), is_trusted=is_trusted)) == ANSWERS[text]


@pytest.mark.parametrize("text", ANSWERS)
def test_the_grammar_admits_what_is_parsed(text):
    grammar = calls_grammar(HERMES, FUNCTIONS, ToolChoice(), control={}, thinking=THINKING)
    assert admitted(grammar, text) == "whole"


def test_the_grammar_refuses_what_is_no_call():
    grammar = calls_grammar(HERMES, FUNCTIONS, ToolChoice(), control={}, thinking=THINKING)
    assert admitted(grammar, "a <tool_call>x") == "a <tool_call>"
    assert admitted(grammar, '<tool_call>\n{"name": "other') == '<tool_call>\n{"name": "'
    assert admitted(grammar, f"{NOW} and") == NOW
    assert admitted(grammar, NOW.replace("{}", '{"a": 1}')) == NOW[: NOW.index("{}") + 1]
    assert admitted(grammar, WEATHER.replace("1.50", "true")).endswith('"days": ')
    for escape in ("/", "u00e9"):  # in the next turn Python would write such a text otherwise
        call = NOW.replace("now", "get.weather").replace("{}", f'{{"city": "\\{escape}"}}')
        assert admitted(grammar, call) not in ("whole", "prefix")


def test_control_tokens_are_the_marks_where_the_vocabulary_has_them():
    control = ("<tool_call>", "</tool_call>")
    grammar = calls_grammar(HERMES, FUNCTIONS, ToolChoice(), control=ids_of(control))
    assert admitted(grammar, f"I look.\n{NOW}\n{NOW}", control) == "whole"
    spelled = admitted(grammar, NOW, control, in_letters=True)
    assert spelled == NOW.removesuffix("</tool_call>")  # letters begin a call too, and do not end it


def test_a_choice_restricts_the_grammar():
    required = calls_grammar(HERMES, FUNCTIONS, ToolChoice("required"), control={})
    assert admitted(required, "Hello") == ""
    assert admitted(required, f"{NOW}\n{WEATHER}") == "whole"
    one = calls_grammar(HERMES, FUNCTIONS, ToolChoice(parallel=False), control={})
    assert admitted(one, f"{NOW}\n{NOW}") == NOW


def test_thinking_may_be_open_when_the_answer_begins():
    grammar = calls_grammar(HERMES, FUNCTIONS, ToolChoice("required"), control={}, thinking=THINKING, is_open=True)
    text = f"Hm <tool_call>\n</think>\n\n{NOW}"
    assert admitted(grammar, text) == "whole"
    assert admitted(grammar, "Hm\n</think>\n\nSo") == "Hm\n</think>\n\n"
    assert answer(parsed(text, is_open=True)) == ("", "Hm <tool_call>", [("now", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        "a <tool_call> b",
        "<tool_call>\n<tool_call>\n{",
        WEATHER[:60],
        NOW.replace("now", "other"),
        NOW.replace("{}", "{]"),
        NOW.replace("{}", "[1]"),
        "x\n<tool",
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        "<think",
    ],
)
def test_what_is_no_call_is_text(text):
    for seed in range(20):
        assert answer(parsed(text, Random(seed))) == (text, "", [])


def test_arguments_are_shown_as_they_come_where_a_grammar_made_them():
    parser = Parser(HERMES, FUNCTIONS, is_trusted=True)
    assert parser.push('Yes\n<tool_call>\n{"name": "get.weather", "argu') == [TextPart("Yes")]
    begin, first = parser.push('ments": {"city": "Pa')
    assert begin == CallBegin(0, begin.id, "get.weather") and first == CallArguments(0, '{"city": "Pa')
    assert parser.push('ris"') == [CallArguments(0, 'ris"')]
    assert parser.push("}}\n</tool_call>") == [CallArguments(0, "}")]
    assert parser.finish() == []


def test_text_is_held_back_only_while_it_may_be_a_mark():
    parser = Parser(HERMES, FUNCTIONS)
    assert parser.push("a\n<tool") == [TextPart("a")]
    assert parser.push("s") == [TextPart("\n<tools")]
    assert parser.push("<tool_call>") == []
    assert parser.push(" no") == [TextPart("<tool_call> no")]


@pytest.mark.parametrize(
    "inner",
    [
        '{"arguments": {"city": "A"}, "name": "get.weather"}',
        '{"id": 7, "name": "get.weather", "parameters": {"city": "A"}}',
        '{"name":"get.weather","arguments":"{\\"city\\": \\"A\\"}"}',
    ],
)
def test_an_answer_without_a_grammar_may_write_calls_otherwise(inner):
    for text in (f"<tool_call>{inner}</tool_call>", f"<tool_call>\n\n{inner}\n", f"<tool_call>{inner}</tool_c"):
        _, _, [(name, arguments)] = answer(parsed(text, Random(1)))
        assert name == "get.weather" and json.loads(arguments) == {"city": "A"}


def test_ids_are_unique():
    ids = [part.id for part in parsed("\n".join([NOW] * 50)) if isinstance(part, CallBegin)]
    assert len(set(ids)) == 50


def test_an_answer_without_calls_may_have_a_grammar_of_its_own():
    for wanted, text, found in (
        (ToolChoice(), "yes", "whole"),
        (ToolChoice(), "so", ""),
        (ToolChoice(), NOW, "whole"),
        (ToolChoice("required"), "yes", ""),
    ):
        grammar = calls_grammar(HERMES, FUNCTIONS, wanted, control={}, text='("yes" | "no")')
        assert admitted(grammar, text) == found
