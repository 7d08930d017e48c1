"""Tools, formats and thinking in Ollama's API: a call comes whole, with its arguments as an object."""

import json
import re
import sys

import httpx2
import jsonschema
import pytest

from tests.serve.conftest import CLOCK, MODEL, WEATHER, served
from tests.serve.ollama.test_ollama import lines, whole
from tests.serve.scripted import call, save_scripted_model, scripted
from tokenmill.serve.ollama.parse import OllamaChatBody, parse_chat
from tokenmill.serve.request.prompt import Model

FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": WEATHER}
TOOLS = [{"type": "function", "function": FUNCTION}, {"function": {"name": "get_time", "parameters": CLOCK}}]
ASKED = [{"role": "user", "content": "Rome?"}]
CHAT = {"model": MODEL, "messages": ASKED, "options": {"num_predict": 300, "seed": 3, "temperature": 1}}
CALL = CHAT | {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}


@pytest.fixture(scope="module")
def writes(writer):
    with httpx2.Client(base_url=writer.url, timeout=120, trust_env=False) as http:
        yield http


@pytest.fixture(scope="module")
def thinks(thinker):
    with httpx2.Client(base_url=thinker.url, timeout=120, trust_env=False) as http:
        yield http


def test_a_call_whole_and_streamed(writes):
    done = whole(writes, "/api/chat", CALL)
    (call,) = done.message.tool_calls
    assert done.done_reason == "stop" and done.message.content == "" and call.id
    jsonschema.validate(call.function.arguments, WEATHER if call.function.name == "get_weather" else CLOCK)
    *parts, last = lines(writes, "/api/chat", CALL)
    (streamed,) = [each for part in parts for each in part.message.tool_calls]
    assert streamed.function == call.function and not any(part.message.content for part in parts)
    assert last.done_reason == "stop" and last.eval_count == done.eval_count


@pytest.mark.slow
def test_several_calls_are_numbered(writes):
    body = CALL | {"parallel_tool_calls": True, "options": {"num_predict": 600, "seed": 0, "temperature": 1}}
    done = whole(writes, "/api/chat", body)
    calls = done.message.tool_calls
    assert [call.function.index for call in calls] == list(range(len(calls))) and len({c.id for c in calls}) == len(
        calls
    )
    streamed = [call for part in lines(writes, "/api/chat", body) for call in part.message.tool_calls]
    assert [call.function for call in streamed] == [call.function for call in calls]


@pytest.mark.slow
def test_space_before_a_call_is_no_text(tmp_path):
    """However the text comes in pieces; all other text is given as it is."""
    texts = {
        "one": "Let me see. \n\n\n" + call("look", at="x"),
        "two": "\n\n" + call("look", at="x"),
        "three": " \n It is \n\n so.\n \n",
    }
    wanted = {"one": ("Let me see.", 1), "two": ("", 1), "three": (texts["three"], 0)}
    function = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
    settings = {"max_length": 2048, "max_sequences": 2, "cache_tokens": 8192}
    with (
        served(save_scripted_model(tmp_path), settings) as server,
        scripted(server.driver.core, lambda prompt: texts[re.findall(r"<(\w+)>\?", prompt)[-1]]) as script,
        httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http,
    ):
        for name, (text, count) in wanted.items():
            messages = [{"role": "user", "content": f"<{name}>?"}]
            body = {"model": MODEL, "messages": messages, "tools": [{"type": "function", "function": function}]}
            for parts in ([whole(http, "/api/chat", body)], lines(http, "/api/chat", body)):
                assert "".join(part.message.content for part in parts) == text, name
                assert sum(len(part.message.tool_calls) for part in parts) == count
        assert not script.departures


@pytest.mark.parametrize("num_predict", [25, 40, 48, 49, 50, 51, 52, 55])
def test_a_call_that_is_cut_is_text(num_predict, writes):
    """Nobody should run a call whose arguments are not all there."""
    body = CALL | {"tools": TOOLS[:1], "options": CHAT["options"] | {"num_predict": num_predict}}
    done = whole(writes, "/api/chat", body)
    assert done.done_reason == "length" and not done.message.tool_calls
    streamed = lines(writes, "/api/chat", body)
    assert "".join(part.message.content for part in streamed) == done.message.content
    assert not any(part.message.tool_calls for part in streamed)


def test_a_number_beyond_a_float_is_the_largest(tmp_path):
    """A grammar admits it, a reader of JSON finds Infinity in it, and JSON could not say that again."""
    text = '<tool_call>\n{"name": "look", "arguments": {"x": [1e999, -1e999]}}\n</tool_call>'
    parameters = {"type": "object", "properties": {"x": {"type": "array", "items": {"type": "number"}}}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    with (
        served(save_scripted_model(tmp_path), {"max_length": 2048}) as server,
        scripted(server.driver.core, lambda prompt: text),
        httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http,
    ):
        wanted = {"x": [sys.float_info.max, -sys.float_info.max]}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "so"}], "tools": tools}
        for parts in ([whole(http, "/api/chat", body)], lines(http, "/api/chat", body)):
            assert [each.function.arguments for part in parts for each in part.message.tool_calls] == [wanted]
        body |= {"max_tokens": 500, "tools": [{"name": "look", "input_schema": parameters}]}
        (block,) = http.post("/v1/messages", json=body).json()["content"]
        assert block["input"] == wanted


CALLED = {"function": {"name": "get_time", "arguments": {}}}
RESULTS = [
    [{"role": "tool", "content": "noon", "tool_name": "get_time"}],
    [{"role": "tool", "content": "noon", "name": "get_time"}],
    [{"role": "tool", "content": "noon"}],
    [{"role": "tool", "content": "noon", "tool_call_id": "x"}],
]


@pytest.mark.parametrize("results", RESULTS)
def test_calls_and_results_in_the_history(results, writes):
    history = [*ASKED, {"role": "assistant", "content": "I look.", "tool_calls": [CALLED]}, *results]
    call = {"id": "x", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    plain = [*ASKED, {"role": "assistant", "content": "I look.", "tool_calls": [call]}]
    plain.append({"role": "tool", "tool_call_id": "x", "content": "noon"})
    body = {"messages": plain, "tools": [TOOLS[0]], "max_tokens": 20, "temperature": 0, "tool_choice": "none"}
    wanted = writes.post("/v1/chat/completions", json=body).json()
    options = {"num_predict": 20, "temperature": 0}
    asked = {"model": MODEL, "messages": history, "tools": [TOOLS[0]], "tool_choice": "none", "options": options}
    done = whole(writes, "/api/chat", asked)
    assert done.message.content == wanted["choices"][0]["message"]["content"]
    assert done.prompt_eval_count == wanted["usage"]["prompt_tokens"]


def test_results_find_their_calls(quiet):
    """By the id that the client gave the call, else by the name of the function, else in their order."""
    names, ids = ("a", "b", "a", "c"), ("1", None, "3", ["4"])
    calls = [{"id": own, "function": {"name": name, "arguments": {}}} for own, name in zip(ids, names, strict=True)]
    results = [{"tool_call_id": "3"}, {"tool_name": "b"}, {"tool_name": "a"}, {"tool_call_id": ["4"]}, {"name": "a"}]
    messages = [{"role": "assistant", "tool_calls": calls}, *({"role": "tool", **result} for result in results)]
    messages += [{"role": "assistant", "tool_calls": calls[:1]}, {"role": "tool", "tool_call_id": "3"}]
    model = Model(quiet.core.loaded, MODEL, False)
    made = parse_chat(OllamaChatBody(model=MODEL, messages=messages), model).messages
    given = [call["id"] for call in made[0]["tool_calls"]]
    assert [message["tool_call_id"] for message in made[1:6]] == [given[2], given[1], given[0], given[3], None]
    assert made[-1]["tool_call_id"] == made[-2]["tool_calls"][0]["id"] not in given


def test_results_find_their_calls_by_name(writes):
    """Two calls and their results in the other order; OpenAI's ids say the same."""
    names = ("get_weather", "get_time")
    calls = [{"function": {"name": name, "arguments": {}}} for name in names]
    results = [{"role": "tool", "content": name, "tool_name": name} for name in reversed(names)]
    history = [*ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    with_ids = [{"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    plain = [*ASKED, {"role": "assistant", "content": None, "tool_calls": with_ids}]
    plain += [{"role": "tool", "tool_call_id": name, "content": name} for name in reversed(names)]
    body = {"messages": plain, "max_tokens": 12, "temperature": 0}
    wanted = writes.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    options = {"num_predict": 12, "temperature": 0}
    assert whole(writes, "/api/chat", CHAT | {"messages": history, "options": options}).message.content == wanted


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_a_format(path, writes):
    body = CHAT | {"format": WEATHER, "prompt": "Rome?"}
    for text in (
        "".join(_text(part) for part in lines(writes, path, body)),
        _text(whole(writes, path, body)),
    ):
        jsonschema.validate(json.loads(text), WEATHER)
    found = whole(writes, path, body | {"format": "json", "options": {"num_predict": 400, "seed": 1}})
    assert _text(found).startswith("{")
    assert _text(whole(writes, path, body | {"format": ""})) == _text(
        whole(writes, path, {name: value for name, value in body.items() if name != "format"})
    )


def _text(answer):
    return answer.message.content if "message" in answer else answer.response


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_thinking_stands_by_itself(path, thinks):
    def said(part):
        inner = part.message if path == "/api/chat" else part
        return inner.thinking, _text(part)

    prompt = {"messages": ASKED} if path == "/api/chat" else {"prompt": "Rome?"}
    body = {"model": MODEL, **prompt, "options": {"num_predict": 40, "seed": 5, "thinking_budget": 8}}
    thinking, text = said(whole(thinks, path, body))
    assert 0 < len(thinking) <= 8 and text and "think>" not in text
    parts = [said(part) for part in lines(thinks, path, body)]
    assert ("".join(each for each, _ in parts), "".join(each for _, each in parts)) == (thinking, text)
    assert said(whole(thinks, path, body | {"think": True})) == (thinking, text)
    assert said(whole(thinks, path, body | {"think": False}))[0] == ""
    low = whole(thinks, path, body | {"think": "low", "options": {"num_predict": 4, "seed": 5}})
    assert said(low)[0] and not low.warnings
    assert "thinking" in thinks.post("/api/show", json={"model": MODEL}).json()["capabilities"]


def test_a_format_that_is_none(writes):
    for wrong in ({"type": "object", "required": [[]]}, {"type": "no"}, "yaml"):
        response = writes.post("/api/chat", json=CHAT | {"format": wrong})
        assert response.status_code == 400 and response.json()["error"].startswith("format"), response.text


def test_earlier_thinking_is_told_to_the_template(thinks):
    """As reasoning_content is, by OpenAI's name."""
    turns = [*ASKED, {"role": "assistant", "content": "Yes.", "thinking": "Hm."}, {"role": "user", "content": "Why?"}]
    options = {"num_predict": 6, "temperature": 0}
    done = whole(thinks, "/api/chat", {"model": MODEL, "messages": turns, "options": options})
    plain = [*ASKED, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}, turns[-1]]
    wanted = thinks.post("/v1/chat/completions", json={"messages": plain, "max_tokens": 6, "temperature": 0}).json()
    assert done.prompt_eval_count == wanted["usage"]["prompt_tokens"]
