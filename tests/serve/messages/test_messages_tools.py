"""Tools on /v1/messages, through Anthropic's own client. The model is random: the grammar makes its calls."""

import json

import anthropic
import jsonschema
import pytest
from anthropic.types import ThreadUnsupportedRequestError

from tests.serve.conftest import CLOCK, MODEL, WEATHER

TOOLS = [
    {"name": "get_weather", "description": "The weather.", "input_schema": WEATHER},
    {"name": "get_time", "input_schema": CLOCK, "cache_control": {"type": "ephemeral"}},
]
SERVER_TOOL = {"type": "web_search_20250305", "name": "web_search"}
LATER = {"name": "later", "input_schema": CLOCK, "defer_loading": True}
MESSAGES = [{"role": "user", "content": "Rome?"}]
ONE = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
ASK = {"model": MODEL, "max_tokens": 300, "messages": MESSAGES, "tools": TOOLS, "extra_body": {"seed": 3}}


def test_a_call_whole_and_streamed(claude_writer):
    whole = claude_writer.messages.create(**ASK, tool_choice=ONE)
    with claude_writer.messages.stream(**ASK, tool_choice=ONE) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    (block,) = whole.content
    assert (block.type, block.name, whole.stop_reason) == ("tool_use", "get_weather", "tool_use")
    jsonschema.validate(block.input, WEATHER)
    assert streamed.content[0].input == block.input and streamed.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    pieces = [event.partial_json for event in events if event.type == "input_json"]
    assert json.loads("".join(pieces)) == block.input and len(pieces) > 1


def test_any_of_them(claude_writer):
    asked = ASK | {"tools": [*TOOLS, SERVER_TOOL, LATER]}
    done = claude_writer.messages.create(**asked, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert done.content[0].name in ("get_weather", "get_time")
    assert len(done.warnings) == 2


def test_calls_and_results_in_the_history(claude_writer, openai_writer):
    history = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_1", "name": "get_time", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    found = claude_writer.messages.count_tokens(model=MODEL, messages=history)
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "I look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
        {"role": "user", "content": "And?"},
    ]
    wanted = openai_writer.chat.completions.create(model=MODEL, messages=messages, max_tokens=1).usage
    assert found.input_tokens == wanted.prompt_tokens
    with_tools = claude_writer.messages.count_tokens(model=MODEL, messages=history, tools=TOOLS)
    assert with_tools.input_tokens > found.input_tokens


def test_the_runner_of_anthropics_client_goes_on_without_a_thread(claude_writer):
    """It begins with a thread, in which a server keeps what was said, and would send the results of calls alone."""
    asked = []

    @anthropic.beta_tool
    def now() -> str:
        """The time."""
        asked.append(1)
        return "noon"

    told = {"model": MODEL, "max_tokens": 300, "messages": MESSAGES, "tools": [now], "max_iterations": 2}
    runner = claude_writer.beta.messages.tool_runner(**told, tool_choice={"type": "tool", "name": "now"})
    assert [message.stop_reason for message in runner] == ["tool_use", "tool_use"] and asked
    with pytest.raises(ThreadUnsupportedRequestError):
        claude_writer.beta.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES, thread={"type": "create"})


def test_the_text_may_have_a_schema(claude_writer):
    form = {"format": {"type": "json_schema", "schema": WEATHER}}
    done = claude_writer.messages.create(model=MODEL, max_tokens=200, messages=MESSAGES, output_config=form)
    jsonschema.validate(json.loads(done.content[0].text), WEATHER)


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [TOOLS[0], TOOLS[0]]},
        {"tools": [{"input_schema": CLOCK}]},
        {"tool_choice": {"type": "tool", "name": "unknown"}},
        {"tool_choice": {"type": "sometimes"}},
        {"tools": [], "tool_choice": {"type": "any"}},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "y"}]}]},
    ],
    ids=str,
)
def test_what_is_wrong_is_said(claude_writer, more):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude_writer.messages.create(**(ASK | more))
    assert caught.value.body["error"]["type"] == "invalid_request_error"
