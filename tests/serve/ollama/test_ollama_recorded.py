"""Requests of editors and clients, as recorded: each is answered, and no field of it is unknown.

The files in tests/serve/recorded say whether they were taken from a run or from a client's source.
"""

import json
from pathlib import Path

import httpx2
import pytest

from tests.marks import slow_but
from tests.serve.clients.test_libraries import answer
from tests.serve.conftest import served
from tests.serve.ollama.test_ollama import ROUTES, read
from tests.serve.scripted import save_scripted_model, scripted

FOLDER = Path(__file__).parents[1] / "recorded"
FILES = sorted(FOLDER.glob("*.json"))
SETTINGS = {"max_length": 16384, "max_sequences": 2, "cache_tokens": 65536}
SAID = ("Hello from the mill.", "It is 21 degrees.", '{"name":"Paris","population":2100000}', "")


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    path = save_scripted_model(tmp_path_factory.mktemp("scripted"))
    with served(path, SETTINGS) as server, scripted(server.driver.core, answer) as script:
        with httpx2.Client(base_url=server.url, timeout=120, trust_env=False) as http:
            yield http
        assert not script.departures


def test_there_are_enough():
    told = [json.loads(file.read_text(encoding="utf-8")) for file in FILES]
    assert len(told) >= 15 and sum(each["taken"].startswith("from a run") for each in told) >= 10


@pytest.mark.parametrize("name", slow_but((file.stem for file in FILES), "zed", "vscode-copilot", "litellm"))
def test_each_is_answered(name, http):
    for request in json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))["requests"]:
        body = request["body"]
        content = None if body is None else json.dumps(body).encode()
        response = http.request(request["method"], request["path"], content=content, headers=request["headers"])
        assert response.status_code == 200, response.text
        if request["path"] not in ROUTES:
            continue
        parts = [read(request["path"], line) for line in response.text.splitlines()]
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        assert (len(parts) > 1) == (body.get("stream", True) and parts[-1].done_reason in ("stop", "length"))
        warnings = [told for told in parts[-1].warnings if not told.startswith("options.")]
        assert not [told for told in warnings if "the model stays loaded" not in told], "no field is unknown"
        message = [part.message if request["path"] == "/api/chat" else part for part in parts]
        text = "".join(each.content if request["path"] == "/api/chat" else each.response for each in message)
        calls = [call for each in message for call in each.tool_calls]
        assert text in SAID and (text or calls or parts[-1].done_reason in ("load", "unload"))
