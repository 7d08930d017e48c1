"""The log of an agent's requests: what is read, and what is refused with its line."""

import json
import re

import pytest

from tokenmill.errors import TokenmillError
from tokenmill.prove.agent.log import read_log

BODY = {"messages": []}


def written(tmp_path, *lines):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_requests_in_their_order(tmp_path):
    headers = {"Anthropic-Version": "2023-06-01", "User-Agent": "x"}
    first = {"path": "/v1/messages?beta=true", "body": BODY, "headers": headers, "time": 1.5}
    one, two = read_log(written(tmp_path, first, "", {"path": "/v1/responses", "body": {}}))
    assert (one.number, one.path, one.body) == (1, "/v1/messages", BODY)
    assert one.headers == {"anthropic-version": "2023-06-01"}
    assert (two.number, two.path, two.headers) == (3, "/v1/responses", {})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 1 is no JSON"),
        ("[]", "line 1 must be an object"),
        ({"body": BODY}, "line 1 has no 'path'"),
        ({"path": "/v1/messages"}, "line 1 has no 'body'"),
        ({"path": 3, "body": BODY}, "path = 3 is not allowed: a text"),
        (
            {"path": "/", "body": BODY, "answer": 1},
            "'answer', which is not known: a line has path, body, headers, time",
        ),
        ("", "has no requests: record some"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, line, words):
    with pytest.raises(TokenmillError, match=re.escape(words)):
        read_log(written(tmp_path, line))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TokenmillError, match="cannot be read: No such file"):
        read_log(tmp_path / "none.jsonl")
