"""Tools on /v1/chat/completions, through OpenAI's own client. The model is random: the grammar makes its calls."""

import json
import re

import httpx2
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessageCustomToolCall

from tests.serve.conftest import CLOCK, MODEL, WEATHER, served
from tokenmill import load
from tokenmill.constrain.grammar import begins_forcing
from tokenmill.errors import ConfigError
from tokenmill.serve.start.options import Options

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "get_time", "parameters": CLOCK}},
]
SCHEMAS = {"get_weather": WEATHER, "get_time": CLOCK}
BRACKETS = {"type": "grammar", "grammar": {"syntax": "lark", "definition": 'start: "(" start ")" | "x"'}}
UNREADABLE = {"name": "f", "parameters": {"$ref": "http://a/b"}}
MESSAGES = [{"role": "user", "content": "Rome?"}]
ASK = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "temperature": 1, "seed": 3, "max_tokens": 300}


def check(call):
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert call.type == "function" and call.id.startswith("call_")


@pytest.mark.parametrize("seed", range(4))
def test_a_call_that_is_required(openai_writer, seed):
    asked = ASK | {"tool_choice": "required", "parallel_tool_calls": False, "seed": seed}
    choice = openai_writer.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    (call,) = choice.message.tool_calls
    check(call)


def test_a_stream_joined_is_the_whole(openai_writer):
    asked = ASK | {"tool_choice": "required", "parallel_tool_calls": False}
    whole = openai_writer.chat.completions.create(**asked).choices[0].message.tool_calls[0]
    with openai_writer.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        done = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    (call,) = done.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == (whole.function.name, whole.function.arguments)
    assert done.choices[0].finish_reason == "tool_calls"
    check(call)


def test_one_function_that_is_named(openai_writer):
    asked = ASK | {"tool_choice": {"type": "function", "function": {"name": "get_time"}}}
    (call,) = openai_writer.chat.completions.create(**asked).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_time", "{}")


def test_a_stop_text_inside_a_call_is_told(openai_writer, claude_writer):
    """The arguments are cut, so the reason is not that there is a call to answer."""
    asked = ASK | {"tool_choice": "required", "parallel_tool_calls": False, "stop": ['", "days'], "seed": 0}
    asked["tools"] = TOOLS[:1]
    choice = openai_writer.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "stop" and choice.message.tool_calls[0].function.arguments.startswith('{"city": "')
    done = claude_writer.messages.create(
        model=MODEL,
        max_tokens=300,
        messages=MESSAGES,
        tools=[{"name": "get_weather", "input_schema": WEATHER}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=['", "days'],
    )
    assert done.stop_reason == "stop_sequence" and done.content[0].input["city"] in ("Rome", "Paris")


def test_a_stop_id_inside_a_call_is_told(openai_writer, claude_writer):
    ends = {"extra_body": {"stop_token_ids": [ord("d")]}}  # which is in no word before "days"
    choice = openai_writer.chat.completions.create(
        **ASK | {"tools": TOOLS[:1], "tool_choice": "required"}, **ends
    ).choices[0]
    assert choice.finish_reason == "stop" and choice.stop_reason == ord("d")
    assert choice.message.tool_calls[0].function.arguments.endswith(', "')
    asked = {"model": MODEL, "max_tokens": 300, "messages": MESSAGES, "tool_choice": {"type": "any"}} | ends
    done = claude_writer.messages.create(**asked, tools=[{"name": "get_weather", "input_schema": WEATHER}])
    assert done.stop_reason == "end_turn" and list(done.content[0].input) == ["city"]
    tools = [{"type": "function", "name": "get_weather", "parameters": WEATHER}]
    told = openai_writer.responses.create(model=MODEL, input="Rome?", tools=tools, tool_choice="required", **ends)
    assert told.status == "completed" and told.output[0].status == "incomplete"


@pytest.mark.parametrize(
    ("more", "tools", "is_forcing"),
    [
        ({}, TOOLS, True),
        ({"response_format": {"type": "json_schema", "schema": WEATHER}}, TOOLS, True),
        ({"grammar": 'start: "yes" | "no"'}, TOOLS, False),
        ({}, [{"type": "custom", "custom": {"name": "run", "format": BRACKETS}}], False),
    ],
    ids=lambda each: str(each)[:40],
)
def test_bytes_are_forced_where_no_user_has_written_the_grammar(writer, byte_model, more, tools, is_forcing):
    """The receipt has the grammar, which is read as it was by who checks it."""
    body = {"messages": MESSAGES, "tools": tools, "temperature": 1, "seed": 3, "max_tokens": 300, "receipt": True}
    answer = httpx2.post(f"{writer.url}/v1/chat/completions", json=body | more, timeout=120, trust_env=False).json()
    document = answer["choices"][0]["receipt"]
    assert begins_forcing(document["sampling"]["grammar"]) == is_forcing
    with load(byte_model, max_length=8192) as engine:
        assert engine.verify(document).is_verified


def test_none_and_auto_may_write_text(openai_writer):
    for choice in ("none", "auto"):
        done = openai_writer.chat.completions.create(**(ASK | {"tool_choice": choice, "max_tokens": 8})).choices[0]
        assert done.message.content and not done.message.tool_calls


def test_a_schema_is_about_an_answer_without_calls(openai_writer):
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": WEATHER}}
    for seed in range(3):
        asked = ASK | {"response_format": form, "seed": seed, "parallel_tool_calls": False}
        message = openai_writer.chat.completions.create(**asked).choices[0].message
        assert bool(message.tool_calls) != bool(message.content)
        if message.content:
            jsonschema.validate(json.loads(message.content), WEATHER)
        for call in message.tool_calls or ():
            check(call)
    forced = openai_writer.chat.completions.create(**(asked | {"tool_choice": "required"})).choices[0].message
    check(forced.tool_calls[0])


PARTS = [{"lark_grammar": 'start: "[" @plain_text "]"'}, {"name": "plain_text", "lark_grammar": "start: @answer"}]
PARTS += [{"name": "answer", "lark_grammar": "start: /[0-9]{1,3}/"}]


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ('start: a "!"\na[max_tokens=2]: /[0-9]+/', "[0-9]{1,2}!"),
        (json.dumps({"grammars": PARTS}), r"\[[0-9]{1,3}\]"),
        ("start: N\nN: /[ab]{1,3}/ & ~/a+/", "(?!a+$)[ab]{1,3}"),
    ],
)
def test_a_grammar_is_about_an_answer_without_calls(grammar, pattern, openai_writer):
    texts = []
    for seed in range(4):
        asked = ASK | {"extra_body": {"guided_grammar": grammar}, "seed": seed, "parallel_tool_calls": False}
        message = openai_writer.chat.completions.create(**asked).choices[0].message
        if message.content:
            texts.append(message.content)
            assert re.fullmatch(pattern, message.content)
        for call in message.tool_calls or ():
            check(call)
    assert texts


def test_a_call_that_is_cut_has_the_reason_length(openai_writer):
    asked = ASK | {"tool_choice": "required", "max_tokens": 30}
    assert openai_writer.chat.completions.create(**asked).choices[0].finish_reason == "length"


def test_the_history_has_calls_and_results(openai_writer):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
    ]
    done = openai_writer.chat.completions.create(**(ASK | {"messages": history, "max_tokens": 4}))
    assert done.usage.completion_tokens == 4


LARK = 'start: "*** " WORD LF\nWORD: /[ab"]/ /[cd]/\n%import common.LF\n'
GRAMMAR = {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}}
PATCH = {"type": "custom", "custom": {"name": "patch", "description": "Patch.", "format": GRAMMAR}}


def test_a_custom_tool_follows_its_grammar(openai_writer):
    """In the types of OpenAI's client, which has none for the deltas: there `custom` has the keys of a whole call."""
    asked = ASK | {"tools": [*TOOLS, PATCH], "tool_choice": {"type": "custom", "custom": {"name": "patch"}}}
    choice = openai_writer.chat.completions.create(**asked).choices[0]
    (call,) = choice.message.tool_calls
    assert isinstance(call, ChatCompletionMessageCustomToolCall) and choice.finish_reason == "tool_calls"
    assert call.custom.name == "patch" and re.fullmatch(r'\*\*\* [ab"][cd]\n', call.custom.input)
    deltas = [each.choices[0].delta for each in openai_writer.chat.completions.create(**asked, stream=True)]
    first, second = [delta.tool_calls[0].model_dump() for delta in deltas if delta.tool_calls]
    assert (first["index"], first["type"], first["custom"]) == (0, "custom", {"name": "patch", "input": ""})
    assert (second["index"], second["custom"]) == (0, {"input": call.custom.input})
    asked["messages"] = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "done"},
    ]
    assert openai_writer.chat.completions.create(**(asked | {"max_tokens": 30})).usage.completion_tokens == 30


def test_an_input_that_is_cut_is_shown_as_far_as_it_is_there(openai_writer):
    text = {"type": "custom", "custom": {"name": "say"}}
    asked = ASK | {"tools": [text], "tool_choice": "required", "max_tokens": 80}
    whole = openai_writer.chat.completions.create(**asked).choices[0]
    deltas = [each.choices[0].delta for each in openai_writer.chat.completions.create(**asked, stream=True)]
    calls = [delta.tool_calls[0].model_dump()["custom"]["input"] for delta in deltas if delta.tool_calls]
    assert whole.finish_reason == "length" and whole.message.tool_calls[0].custom.input == "".join(calls) != ""


def test_broken_arguments_in_the_history_are_told(openai_writer):
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "R'}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "Unterminated string"}
    history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}, result]
    done = openai_writer.chat.completions.create(**(ASK | {"messages": history, "max_tokens": 4}))
    assert any("message 2 of the chat: the arguments of the call of 'get_time'" in each for each in done.warnings)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "unknown"}}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "function", "function": UNREADABLE | {"strict": True}}]}, "tools"),
        ({"messages": [*MESSAGES, {"role": "tool", "tool_call_id": "x", "content": "y"}]}, "messages"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(openai_writer, more, param):
    with pytest.raises(openai.BadRequestError) as caught:
        openai_writer.chat.completions.create(**(ASK | more))
    assert caught.value.param == param


def test_what_is_not_enforced_is_told(openai_writer):
    asked = ASK | {"tools": [{"type": "function", "function": UNREADABLE}], "max_tokens": 2}
    done = openai_writer.chat.completions.create(**asked)
    assert any("f: parts of its parameters are not enforced: at #: $ref" in each for each in done.warnings)


def test_the_format_of_calls_can_be_set(byte_model):
    """The same call in words of another family: what stands before the parser is not to be seen."""
    with served(byte_model, {"max_length": 4096, "block_size": 32}, tool_format="llama3_json") as server:
        assert server.tools == "tool format llama3_json, as set"
        plain = openai.DefaultHttpxClient(verify=False)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=plain) as client:
            asked = ASK | {"tool_choice": "required", "parallel_tool_calls": False, "logprobs": True}
            choice = client.chat.completions.create(**asked).choices[0]
    check(choice.message.tool_calls[0])
    written = bytes(byte for entry in choice.logprobs.content for byte in entry.bytes).decode()
    assert written.startswith('{"name": "get_')
    with pytest.raises(ConfigError, match="tool_format = 'morse' is not allowed"):
        Options(MODEL, tool_format="morse")
