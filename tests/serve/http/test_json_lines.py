"""Streams and files of lines, read by clients that end a line wherever Python's str.splitlines does."""

import json
from types import SimpleNamespace

import httpx2
import pytest

from tokenmill.batches.formats.json_lines import JSONLines
from tokenmill.batches.row import dumps
from tokenmill.cli.process.display import print_json
from tokenmill.prove.agent.log import read_log
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.http.streams import to_line
from tokenmill.serve.protocols import refusals_at
from tokenmill.text.json_lines import one_line

ENDS = "a\u2028b\u2029c\x85d"
CHAT = {"model": "words", "messages": [{"role": "user", "content": "w1"}], "guided_choice": [ENDS], "stream": True}
PROMPT = {"model": "words", "prompt": "w1", "guided_choice": [ENDS], "stream": True}

ASKED = {
    "/v1/completions": (PROMPT, lambda each: each["choices"][0]["text"]),
    "/v1/chat/completions": (CHAT, lambda each: each["choices"][0]["delta"].get("content")),
    "/v1/responses": (
        {"model": "words", "input": "w1", "guided_choice": [ENDS], "stream": True},
        lambda each: each.get("delta") if each["type"] == "response.output_text.delta" else None,
    ),
    "/v1/messages": ({**CHAT, "max_tokens": 30}, lambda each: each.get("delta", {}).get("text")),
    "/api/chat": (CHAT, lambda each: each["message"]["content"]),
    "/api/generate": (PROMPT, lambda each: each["response"]),
}


def test_the_reader_ends_a_line_there():
    """What this page is about: httpx's reader of lines, which many clients read streams with."""
    response = httpx2.Response(200, content=json.dumps(ENDS, ensure_ascii=False).encode())
    assert len([*response.iter_lines()]) == 4


@pytest.mark.parametrize("route", ASKED)
def test_each_line_of_a_stream_is_whole(writer, route):
    body, text_of = ASKED[route]
    with httpx2.Client(base_url=writer.url, timeout=120, trust_env=False) as http:
        with http.stream("POST", route, json=body) as response:
            assert response.status_code == 200
            lines = [
                line.removeprefix("data:").strip() for line in response.iter_lines() if not line.startswith("event")
            ]
        objects = [json.loads(line) for line in lines if line and line != "[DONE]"]
        assert "".join(text_of(each) or "" for each in objects) == ENDS


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses", "/api/chat"])
def test_an_error_at_the_end_of_a_stream_is_one_line(path):
    event = refusals_at(path).event_of(ApiError(400, f"stop = {ENDS}"), {}).decode()
    (line,) = [line for line in event.splitlines() if line and not line.startswith("event: ")]
    assert ENDS in json.dumps(json.loads(line.removeprefix("data: ")), ensure_ascii=False)


VALUES = [ENDS, {ENDS: [ENDS, 1.5, None, True]}, "plain", "\\u2028 as it is spelled", "\n\r\x0b\x0c\x1c\x1d\x1e"]


@pytest.mark.parametrize("value", VALUES)
def test_the_value_is_the_same(value, capsys):
    print_json(value)
    for line in (to_line(value).decode(), dumps(value), capsys.readouterr().out.removesuffix("\n")):
        assert len(line.splitlines()) == 1 and json.loads(line) == value
    assert one_line('"plain"') == '"plain"'


def test_files_of_others_are_read_by_their_own_line_ends(tmp_path):
    """Another program may have written the letters as they are."""
    body = {"messages": [{"role": "user", "content": ENDS}]}
    rows = [{"path": "/v1/chat/completions", "body": body}] * 2
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert [each.body for each in read_log(file)] == [body, body]
    assert [row.values for row in JSONLines().rows(file)] == rows


def test_written_rows_are_lines(tmp_path):
    file = tmp_path / "out.jsonl"
    with file.open("wb") as out, JSONLines().writer(out, SimpleNamespace()) as write:
        write({"text": ENDS})
        write({"text": "b"})
    lines = file.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [{"text": ENDS}, {"text": "b"}]
