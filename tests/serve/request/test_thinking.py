"""Thinking in all three protocols: a budget ends it, and it stands in a field, a block and an item of its own."""

import json
import threading
import time

import anthropic
import httpx2
import jsonschema
import openai
import pytest

from tests.byte_model import save_byte_model
from tests.serve.conftest import MODEL, SETTINGS, THINKS, WEATHER
from tokenmill import ConfigError, load
from tokenmill.cli.models import load_engine
from tokenmill.hub.progress import Silent
from tokenmill.serve.http.address import Address, listen
from tokenmill.serve.request.writer import system_fingerprint
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import Server
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.text.turns import turns_of

ASKED = [{"role": "user", "content": "Rome?"}]
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}
CHAT = {"model": MODEL, "messages": ASKED, "max_tokens": 40, "seed": 5}


@pytest.fixture(scope="module")
def chat(thinker):
    plain = openai.DefaultHttpxClient(verify=False)
    with openai.OpenAI(base_url=f"{thinker.url}/v1", api_key="none", max_retries=0, http_client=plain) as client:
        yield client


@pytest.fixture(scope="module")
def claude(thinker):
    plain = anthropic.DefaultHttpxClient(verify=False)
    with anthropic.Anthropic(base_url=thinker.url, api_key="none", max_retries=0, http_client=plain) as client:
        yield client


@pytest.fixture(scope="module")
def post(thinker):
    with httpx2.Client(base_url=thinker.url, timeout=120, trust_env=False, verify=False) as http:
        yield lambda **more: http.post("/v1/chat/completions", json=CHAT | more).json()


def test_chat_has_it_in_a_field_of_its_own(chat):
    asked = {**CHAT, "extra_body": {"thinking_budget": 8}}
    done = chat.chat.completions.create(**asked)
    message = done.choices[0].message
    assert done.usage.completion_tokens_details.reasoning_tokens == len(message.reasoning_content.encode())
    assert len(message.reasoning_content) <= 8 and message.reasoning == message.reasoning_content
    assert message.content and "think>" not in message.content
    thoughts, texts = [], []
    for chunk in chat.chat.completions.create(**asked, stream=True):
        delta = chunk.choices[0].delta
        thoughts.append(getattr(delta, "reasoning_content", None) or "")
        texts.append(delta.content or "")
    assert ("".join(thoughts), "".join(texts)) == (message.reasoning_content, message.content)


def test_it_is_counted_once_it_has_ended(chat, thinker, monkeypatch):
    """To count all of it with each piece would take as long as the square of its length."""
    counted, encode = [], thinker.driver.core.loaded.tokenizer.encode
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = {**CHAT, "stream": True, "stream_options": options, "extra_body": {"thinking_budget": 8}}
    monkeypatch.setattr(
        thinker.driver.core.loaded.tokenizer,
        "encode",
        lambda *given, **how: counted.append(how) or encode(*given, **how),
    )
    usages = [chunk.usage for chunk in chat.chat.completions.create(**asked)]
    details = [usage.completion_tokens_details for usage in usages]
    found = [each.reasoning_tokens for each in details if each is not None]
    assert found and details[0] is None and found == sorted(found) and counted.count({"continues": True}) == 1


def test_messages_have_a_block(claude):
    asked = {"model": MODEL, "messages": ASKED, "max_tokens": 1100, "extra_body": {"seed": 5, "stop": ["e", "a", " "]}}
    asked["thinking"] = {"type": "enabled", "budget_tokens": 8}
    with claude.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        done = stream.get_final_message()
    thinking = done.content[0]
    assert thinking.type == "thinking" and thinking.signature and "signature" in kinds
    whole = claude.messages.create(**asked)
    assert [block.model_dump() for block in whole.content] == [block.model_dump() for block in done.content]
    for usage in (whole.usage, done.usage):
        assert usage.output_tokens_details.thinking_tokens == len(thinking.thinking.encode())
    history = [*ASKED, {"role": "assistant", "content": done.to_param()["content"]}, *ASKED]
    assert claude.messages.count_tokens(model=MODEL, messages=history).input_tokens > 20


def test_responses_have_an_item(chat):
    asked = {"model": MODEL, "input": "Rome?", "max_output_tokens": 60}
    asked["extra_body"] = {"seed": 5, "thinking_budget": 8}
    whole = chat.responses.create(**asked)
    with chat.responses.stream(**asked) as stream:
        kinds = {event.type for event in stream}
    assert whole.output[0].type == "reasoning" and whole.output[0].content[0].type == "reasoning_text"
    assert whole.output[1].type == "message" and "response.reasoning_text.delta" in kinds
    assert whole.usage.output_tokens_details.reasoning_tokens == len(whole.output[0].content[0].text.encode())


def test_a_call_after_it(chat):
    asked = {**CHAT, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    choice = chat.chat.completions.create(**asked, extra_body={"thinking_budget": 8}).choices[0]
    assert choice.message.reasoning_content and choice.finish_reason == "tool_calls"
    jsonschema.validate(json.loads(choice.message.tool_calls[0].function.arguments), WEATHER)


def test_a_schema_after_it(chat):
    form = {"type": "json_schema", "json_schema": {"name": "place", "schema": WEATHER}}
    asked = {**CHAT, "response_format": form, "max_tokens": 300}
    message = chat.chat.completions.create(**asked, extra_body={"thinking_budget": 8}).choices[0].message
    assert message.reasoning_content
    jsonschema.validate(json.loads(message.content), WEATHER)


def test_none_of_it(post, claude):
    for more in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        message = post(**more)["choices"][0]["message"]
        assert message["content"] and "reasoning_content" not in message
    done = claude.messages.create(model=MODEL, messages=ASKED, max_tokens=10, extra_body={"seed": 5})
    assert [block.type for block in done.content] == ["text"]


def test_a_kind_of_thinking_that_is_not_known_is_told(thinker):
    body = {"messages": ASKED, "max_tokens": 2}
    with httpx2.Client(base_url=thinker.url, timeout=120, trust_env=False, verify=False) as http:
        said = [
            http.post("/v1/messages", json=body | {"thinking": {"type": kind}}).json().get("warnings")
            for kind in ("adaptive", "between_tools", "sometimes")
        ]
        wrong = http.post("/v1/messages", json=body | {"thinking": {"type": "enabled", "budget_tokens": True}})
    assert said == [None, None, ["thinking.type = 'sometimes' is not known: the model thinks as with 'adaptive'"]]
    assert wrong.status_code == 400 and "budget_tokens" in wrong.json()["error"]["message"]


def test_efforts(post):
    for effort in ("minimal", "low", "medium", "high", "xhigh"):
        assert "warnings" not in post(reasoning_effort=effort, max_tokens=2)
    assert post(reasoning_effort="enormous")["error"]["param"] == "reasoning_effort"


def test_a_model_that_does_not_think(http):
    for path, more in (
        ("/v1/chat/completions", {"reasoning_effort": "low"}),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "low"}}),
    ):
        said = http.post(path, json={"messages": [{"role": "user", "content": "w1"}], "max_tokens": 1} | more).json()
        assert any("no marks of thinking" in each for each in said["warnings"])
    refused = {"messages": [{"role": "user", "content": "w1"}], "thinking": {"type": "enabled", "budget_tokens": 0}}
    assert http.post("/v1/messages", json=refused | {"max_tokens": 1}).status_code == 400


COLOUR = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
REQUESTS = {
    "plain": {},
    "budget": {"thinking_budget": 8},
    "effort": {"reasoning_effort": "none"},
    "schema": {
        "thinking_budget": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "c", "schema": COLOUR}},
    },
    "tools": {"thinking_budget": 8, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200},
    "not opened": {"chat_template_kwargs": {"enable_thinking": False}, "guided_json": COLOUR},
}


@pytest.fixture(scope="module")
def given_a_template(tmp_path_factory):
    """The thinker's model without its template, which an option gives to it instead."""
    folder = tmp_path_factory.mktemp("plain")
    path, template = save_byte_model(folder / "model", context=4096), folder / "think.jinja"
    template.write_text(THINKS)
    config = EngineConfig(model=str(path), **SETTINGS | {"max_length": 4096, "block_size": 32})
    taken = listen(Address(port=0))
    server = Server(load_engine(config, Silent(), template), taken, Options(name=MODEL, drain_s=5.0))
    thread = threading.Thread(target=server.serve_to_end, daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.001)
    yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    server.drain()
    thread.join(120)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_template_that_an_option_gives_opens_a_thought_as_the_model_s_own_does(name, post, given_a_template):
    """Where it begins is one decision: for what is shown, for the budget, and for the constraint behind it."""
    wanted = post(**REQUESTS[name])["choices"]
    with httpx2.Client(base_url=given_a_template, timeout=120, trust_env=False, verify=False) as http:
        found = http.post("/v1/chat/completions", json=CHAT | REQUESTS[name]).json()["choices"]
    for each in (*wanted, *found):  # their ids are made anew
        for call in each["message"].get("tool_calls") or ():
            call.pop("id")
    assert found == wanted
    message = found[0]["message"]
    if name in ("schema", "not opened"):
        jsonschema.validate(json.loads(message["content"]), COLOUR)
    assert ("reasoning_content" in message) == (name not in ("effort", "not opened"))


def test_a_template_that_is_replaced_later_counts_from_then_on(tmp_path):
    engine = load(save_byte_model(tmp_path / "model", context=512), dtype="float32", max_length=256)
    asked = {"max_new_tokens": 40, "json_schema": COLOUR}
    before = engine.generate(engine.chat_prompt(ASKED), **asked).text
    jsonschema.validate(json.loads(before), COLOUR)
    with pytest.raises(ConfigError, match="thinking_budget"):
        engine.generate(engine.chat_prompt(ASKED), thinking_budget=4, **asked)
    fingerprint = system_fingerprint(engine.core.loaded)
    engine.tokenizer.use_template(THINKS)
    after = engine.generate(engine.chat_prompt(ASKED), thinking_budget=4, **asked).text
    jsonschema.validate(json.loads(after.partition("</think>")[2]), COLOUR)
    assert system_fingerprint(engine.core.loaded) != fingerprint
    assert turns_of(engine.tokenizer) is turns_of(engine.tokenizer)
