"""Tools on /v1/responses, through OpenAI's own client. The model is random: the grammar makes its calls."""

import json
import re

import jsonschema
import openai
import pytest

from tests.serve.conftest import CLOCK, MODEL, WEATHER

LARK = 'start: "*** " WORD LF\nWORD: /[ab"]/ /[cd]/\n%import common.LF\n'
FUNCTION = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": True}
SPACE = {
    "type": "namespace",
    "name": "clock",
    "description": "Times.",
    "tools": [{"type": "function", "name": "get_time", "parameters": CLOCK}],
}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": LARK}}
SEARCH = {"type": "web_search"}
TOOLS = [FUNCTION, SPACE, PATCH, SEARCH]
ASK = {"model": MODEL, "input": "Rome?", "tools": TOOLS, "parallel_tool_calls": False, "max_output_tokens": 300}
ASK |= {"extra_body": {"seed": 3}}


def only(name, kind="function", **more):
    return ASK | {"tool_choice": {"type": kind, "name": name, **more}}


def both(client, asked):
    """The one item of a response, whole and streamed, which are the same but for ids."""
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        streamed = stream.get_final_response()
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [each.id for each in done] == [each.id for each in streamed.output]
    (first,), (second,) = whole.output, streamed.output
    without = ("id", "call_id", "parsed_arguments")
    assert {k: v for k, v in first.model_dump().items() if k not in without} == {
        k: v for k, v in second.model_dump().items() if k not in without
    }
    assert whole.status == streamed.status == "completed"
    return first, events


def test_a_function(openai_writer):
    item, events = both(openai_writer, only("get_weather"))
    assert (item.type, item.name, item.status) == ("function_call", "get_weather", "completed")
    jsonschema.validate(json.loads(item.arguments), WEATHER)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == item.arguments and len(deltas) > 1


@pytest.mark.parametrize(("stop", "status"), [('"}', "incomplete"), ("</tool_call>", "completed")])
def test_a_call_that_a_stop_text_cuts_is_incomplete(openai_writer, stop, status):
    schema = {"type": "object", "properties": {"city": {"const": "Rome"}}, "required": ["city"]}
    tools = [FUNCTION | {"parameters": schema | {"additionalProperties": False}}]
    asked = {**ASK, "tools": tools, "tool_choice": "required", "extra_body": {"stop": [stop]}}
    (whole,) = openai_writer.responses.create(**asked).output
    events = openai_writer.responses.create(**asked, stream=True)
    (item,) = [event.item for event in events if event.type == "response.output_item.done"]
    assert item.arguments == whole.arguments and item.status == whole.status == status


def test_a_function_of_a_namespace(openai_writer):
    item, _ = both(openai_writer, only("get_time", namespace="clock"))
    assert (item.type, item.name, item.namespace, item.arguments) == ("function_call", "get_time", "clock", "{}")


def test_a_custom_tool_follows_its_grammar(openai_writer):
    item, _ = both(openai_writer, only("apply_patch", "custom"))
    assert (item.type, item.name) == ("custom_tool_call", "apply_patch")
    assert re.fullmatch(r'\*\*\* [ab"][cd]\n', item.input)


def test_some_of_them_are_allowed(openai_writer):
    allowed = [{"type": "function", "name": "get_time", "namespace": "clock"}]
    asked = ASK | {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": allowed}}
    item, _ = both(openai_writer, asked)
    assert (item.name, item.namespace) == ("get_time", "clock")


def test_one_of_them_is_required(openai_writer):
    done = openai_writer.responses.create(**ASK, tool_choice="required")
    assert {item.type for item in done.output} <= {"function_call", "custom_tool_call"} and done.output
    assert done.warnings == ["a tool of type 'web_search' is left out, since nothing here runs it"]


def test_calls_and_results_in_the_input(openai_writer, writer):
    items = [
        {"role": "user", "content": "Rome?"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "call_1", "name": "get_time", "namespace": "clock", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "call_2", "name": "apply_patch", "input": "*** ac\n"},
        {"type": "function_call_output", "call_id": "call_1", "output": "noon"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "done"}]},
    ]
    done = openai_writer.responses.create(**(ASK | {"input": items, "max_output_tokens": 1}))
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "clock__get_time", "arguments": "{}"}},
        {
            "id": "call_2",
            "type": "function",
            "function": {"name": "apply_patch", "arguments": '{"input": "*** ac\\n"}'},
        },
    ]
    messages = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "tool", "tool_call_id": "call_2", "content": "done"},
    ]
    plain = openai_writer.responses.create(**(ASK | {"input": "Rome?", "max_output_tokens": 1}))
    chat = {"model": MODEL, "max_tokens": 1}
    own = [openai_writer.chat.completions.create(**chat, messages=each).usage for each in (messages, messages[:1])]
    added = own[0].prompt_tokens - own[1].prompt_tokens
    assert done.usage.input_tokens - plain.usage.input_tokens == added


def test_the_text_may_have_a_schema(openai_writer):
    form = {"format": {"type": "json_schema", "name": "place", "schema": WEATHER, "strict": True}}
    done = openai_writer.responses.create(model=MODEL, input="Rome?", text=form, max_output_tokens=200)
    jsonschema.validate(json.loads(done.output_text), WEATHER)


def test_a_grammar_that_refers_to_itself_is_followed(openai_writer):
    lark = 'start: "(" (start | WORD) ")"\nWORD: /[ab"]/\n'
    tools = [PATCH | {"format": {"type": "grammar", "syntax": "lark", "definition": lark}}]
    for seed in range(3):
        asked = only("apply_patch", "custom") | {"tools": tools, "extra_body": {"seed": seed}}
        item, _ = both(openai_writer, asked)
        assert re.fullmatch(r'(\(+)[ab"](\)+)', item.input) and item.input.count("(") == item.input.count(")")


def test_a_call_of_the_history_that_was_cut_is_told(openai_writer):
    call = {"type": "function_call", "call_id": "x", "name": "f", "arguments": "{"}
    done = openai_writer.responses.create(model=MODEL, input=[call], max_output_tokens=16)
    assert any("the arguments of the call of 'f' are no JSON object" in each for each in done.warnings)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [FUNCTION, FUNCTION]},
        {"tools": [{"type": "function"}]},
        {"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "(" start'}}]},
        {"tools": [{**PATCH, "format": {"type": "grammar", "syntax": "abnf", "definition": "x"}}]},
        {"tool_choice": {"type": "function", "name": "unknown"}},
        {"tool_choice": {"type": "file_search"}},
        {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
    ],
    ids=str,
)
def test_what_is_wrong_is_said(openai_writer, more):
    with pytest.raises(openai.BadRequestError):
        openai_writer.responses.create(**(ASK | more))
