"""`serve --record`: the requests of a conversation, recorded, and sent again by `tokenmill agent-check`."""

import json
from itertools import pairwise

import httpx2
import pytest

from tests.serve.conftest import served
from tests.serve.scripted import call, in_turn, save_scripted_model, scripted
from tokenmill.errors import ConfigError

SETTINGS = {"max_length": 4096, "max_sequences": 2, "cache_tokens": 12_000, "block_size": 16}
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}
HEADERS = {"Authorization": "Bearer x", "X-Session-Id": "s"}
TOOLS = {"tools": [{"type": "function", "function": LOOK}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_scripted_model(tmp_path_factory.mktemp("scripted"))


def test_a_conversation_is_recorded_and_checked(model, tm, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file, messages = tmp_path / "day.jsonl", []
    answers = [call("look", path=f"file{number}.txt") for number in range(6)]
    with served(model, SETTINGS, record=file) as server, scripted(server.driver.core, in_turn(answers)):
        with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=120) as http:
            for answer in answers:
                messages.append({"role": "user", "content": "Look again. " * 60})
                body = {"messages": messages, "max_tokens": 100, **TOOLS}
                done = http.post("/v1/chat/completions", json=body).json()
                messages.append(said := done["choices"][0]["message"])
                (made,) = said["tool_calls"]
                assert call(made["function"]["name"], **json.loads(made["function"]["arguments"])) == answer
                messages.append({"role": "tool", "tool_call_id": made["id"], "content": "Nothing is there."})
            assert (
                http.post(
                    "/v1/chat/completions", content=b"{", headers={"Content-Type": "application/json"}
                ).status_code
                == 400
            )
            assert http.post("/tokenize", json={"prompt": "a"}).status_code == 200
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["path"] for line in lines] == [*["/v1/chat/completions"] * 6, "/tokenize"]
        assert len(lines[5]["body"]["messages"]) == 16 and lines[0]["headers"]["x-session-id"] == "s"
        assert "authorization" not in lines[0]["headers"] and file.stat().st_mode & 0o777 == 0o600
        code, out, err = tm("agent-check", file, "--url", server.url, "--least", 95)
        rows = [line.split() for line in out.splitlines()[2:]]
        assert code == 0 and [row[0] for row in rows[:7]] == ["1", "2", "3", "4", "5", "6", "all"]
        # A block at most, where the tokens fill it; how many there are is up to the documents that its merges are of.
        assert all(0 <= int(row[5]) <= 16 for row in rows[1:6])
        assert "1 lines of /tokenize were not sent" in err and "parts from" not in err
        code, out, _ = tm("agent-check", file, "--url", server.url, "--least", 99.99, "--json", "--quiet")
        assert code == 1 and json.loads(out)["turns"][5]["stood_before"] > 1000


def test_a_file_that_cannot_be_written(chat_model, tmp_path):
    with pytest.raises(ConfigError, match="a file that can be written"), served(chat_model, record=tmp_path):
        pass


BLANK = "x-anthropic-billing-header: v=1; cch={:x};\nYou help."


def conversation(route, count):
    """The bodies of a growing conversation of an agent, as it sends them to a route; answers are its own."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    items = []
    for number in range(count):
        said, found = "Look at the next one, please. " * 30, f"A file of {number} lines. " * 20
        path = {"path": f"part{number}.py"}
        items += [{"role": "assistant", "content": "It is seen."}] * (number > 0)
        if route == "/v1/messages":
            result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": found}
            use = {"type": "tool_use", "id": f"c{number}", "name": "look", "input": path}
            new = [{"role": "user", "content": said}, {"role": "assistant", "content": [use]}]
            items += [*new, {"role": "user", "content": [result]}, {"role": "system", "content": "Go on."}]
            tools = [{"name": "look", "input_schema": schema}]
            yield {"model": "claude-x", "system": BLANK.format(number * 7919), "tools": tools, "messages": list(items)}
        else:
            call = {"type": "function_call", "call_id": f"c{number}", "name": "look", "arguments": json.dumps(path)}
            output = {"type": "function_call_output", "call_id": f"c{number}", "output": found}
            items += [{"role": "user", "content": said}, call, output]
            tools = [{"type": "function", "name": "look", "parameters": schema, "strict": False}]
            yield {"model": "words", "instructions": "You help.", "tools": tools, "input": list(items)}


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/responses"])
def test_other_protocols_are_checked_too(model, tm, tmp_path, monkeypatch, route):
    """Also with the line about billing, which is another one in each request, and system messages inside."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    file = tmp_path / "log.jsonl"
    lines = [{"path": route, "body": {**body, "max_tokens": 900, "stream": True}} for body in conversation(route, 5)]
    file.write_text("\n".join(map(json.dumps, lines)))
    with served(model, SETTINGS) as server:
        code, out, err = tm("agent-check", file, "--url", server.url, "--json")
    assert code == 0, out + err
    turns = json.loads(out)["turns"]
    assert [turn["parts_from"] for turn in turns] == [None] * 5
    for before, turn in pairwise(turns):
        assert before["prompt_tokens"] - 8 <= turn["stood_before"] and turn["computed_again"] <= 16
