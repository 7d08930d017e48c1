"""gpt-oss's harmony: what the grammar admits is what is parsed, however the text is cut."""

from random import Random

import pytest

from tests.text.tools.answers import answer, pushed
from tests.text.tools.byte_grammar import admitted, ids_of
from tokenmill.text.parts import CallArguments, CallBegin
from tokenmill.text.tools.functions import ToolChoice, read_functions
from tokenmill.text.tools.grammar import calls_grammar
from tokenmill.text.tools.harmony import CHANNEL, CONSTRAIN, END, HARMONY, MESSAGE, START
from tokenmill.text.tools.parser import Parser

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS = read_functions([{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}])
CONTROL = (START, CHANNEL, MESSAGE, CONSTRAIN, END)
THOUGHT = f"{CHANNEL}analysis{MESSAGE}A < b?{END}{START}assistant"
FINAL = f"{CHANNEL}final{MESSAGE}It is blue.\n"
CALL = f'{CHANNEL}commentary to=functions.get_weather {CONSTRAIN}json{MESSAGE}{{"city": "<|"}}'
OLD_CALL = f' to=functions.get_weather{CHANNEL}commentary json{MESSAGE}{{"city": "<|"}}'
SAID = f"{CHANNEL}commentary{MESSAGE}I look.{END}{START}assistant"
CALLED = [("get_weather", '{"city": "<|"}')]
ANSWERS = {
    FINAL: ("It is blue.\n", "", []),
    THOUGHT + FINAL: ("It is blue.\n", "A < b?", []),
    THOUGHT + THOUGHT + FINAL: ("It is blue.\n", "A < b?A < b?", []),
    THOUGHT + CALL: ("", "A < b?", CALLED),
    THOUGHT + SAID + OLD_CALL: ("I look.", "A < b?", CALLED),
}


def parsed(text, cut=None, **more):
    return pushed(Parser(HARMONY, FUNCTIONS, **more), text, cut)


@pytest.mark.parametrize("is_trusted", [False, True])
@pytest.mark.parametrize("text", ANSWERS)
def test_messages_are_parsed_however_they_are_cut(text, is_trusted):
    for end in ("", "<|call|>", "<|return|>"):
        for seed in range(20):
            assert answer(parsed(text + end, Random(seed), is_trusted=is_trusted)) == ANSWERS[text]


@pytest.mark.parametrize("text", ANSWERS)
def test_the_grammar_admits_what_is_parsed(text):
    for control in ((), CONTROL):
        grammar = calls_grammar(HARMONY, FUNCTIONS, ToolChoice(), control=ids_of(control))
        assert admitted(grammar, text, control) == "whole"


def test_the_grammar_refuses_what_is_no_call():
    grammar = calls_grammar(HARMONY, FUNCTIONS, ToolChoice("required"), control=ids_of(CONTROL))
    assert admitted(grammar, THOUGHT + FINAL, CONTROL).endswith("#")
    assert admitted(grammar, THOUGHT + CALL.replace("get_weather", "other"), CONTROL).endswith("functions.")
    assert admitted(grammar, CALL.replace("city", "town"), CONTROL).endswith('{"')
    assert admitted(grammar, CALL + "x", CONTROL).endswith("}")


@pytest.mark.parametrize(
    "header",
    [
        "{channel}commentary to={name} {constrain}json{message}",
        "{channel}commentary to={name}{constrain}json{message}",
        "{channel}commentary to={name} {constrain} json{message}",
        "{channel}commentary to={name} code{message}",
        "{channel}commentary to={name} {constrain}response{message}",
        "{channel}commentary to={name} {constrain}JSON{message}",
        "{channel}commentary to={name}{message}",
        "{channel}commentary {name} {constrain}json{message}",
        "{channel}commentary {name}{message}",
        "{channel}analysis to={name} code{message}",
        " to={name}{channel}commentary code{message}",
        " to={name}{channel}commentary{constrain}json{message}",
        "{start}assistant to={name}{channel}commentary code{message}",
    ],
)
def test_a_call_has_any_content_type(header):
    """As openai-harmony 0.0.8 reads headers (parse_header_from_string): the last word is the content type, the one
    before it the receiver, with or without `to=`; the marker of a constraint stands for itself.
    """
    header = header.format(
        channel=CHANNEL, name="functions.get_weather", constrain=CONSTRAIN, message=MESSAGE, start=START
    )
    for seed in range(10):
        assert answer(parsed(f'{header}{{"city": "<|"}}<|call|>', Random(seed))) == ("", "", CALLED)


def test_an_answer_has_any_content_type_too():
    for kind in (f" {CONSTRAIN}json", f"{CONSTRAIN}json", " json"):
        assert answer(parsed(f"{CHANNEL}final{kind}{MESSAGE}{{}}", Random(1))) == ("{}", "", [])
    text = (
        f"{CHANNEL}commentary to=functions.get_weather more {CONSTRAIN}json{MESSAGE}{{}}"  # no header: a word too many
    )
    assert "more" in answer(parsed(text, Random(1)))[0]


@pytest.mark.parametrize(
    "text",
    [
        "Hello.",
        "Hello <|x|> <b",
        CALL.replace("get_weather", "other"),
        CALL.replace('{"', "[1]"),
        CALL[:-3],
        f"{CHANNEL}analysis",
        f"{CHANNEL} {CHANNEL}{CHANNEL}",
        "<|start|>user",
    ],
)
def test_what_is_no_message_is_text(text):
    for seed in range(20):
        assert answer(parsed(text, Random(seed))) == (text, "", [])


def test_a_message_after_other_text_is_read():
    assert answer(parsed(f"Hm {FINAL}")) == ("Hm It is blue.\n", "", [])


def test_parts_are_shown_as_they_come():
    parser = Parser(HARMONY, FUNCTIONS, is_trusted=True)
    header = len(CALL) - len('{"city": "<|"}')
    (begin,) = parser.push(CALL[:header])
    assert begin == CallBegin(0, begin.id, "get_weather")
    assert parser.push(CALL[header : header + 3]) == [CallArguments(0, '{"c')]
