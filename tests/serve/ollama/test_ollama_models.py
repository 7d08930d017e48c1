"""What Ollama's API tells about the model, and what it would change."""

import re
import shlex
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from safetensors.torch import load_file

from tests.serve.conftest import MODEL, served
from tokenmill.serve.ollama.names import NEUTRAL, OWN, WITHOUT_EFFECT, tagged, unloads
from tokenmill.serve.ollama.routes import _counted


def test_the_model_is_listed_and_runs(http, chat_model, quiet):
    (listed,) = http.get("/api/tags").json()["models"]
    (running,) = http.get("/api/ps").json()["models"]
    assert listed["name"] == listed["model"] == running["name"] == f"{MODEL}:latest"
    assert len(listed["digest"]) == 64 and listed["digest"] == running["digest"]
    assert listed["details"] == running["details"]
    assert listed["details"]["family"] == "llama" and listed["details"]["quantization_level"] == "F32"
    assert listed["size"] == quiet.core.loaded.memory["weights_bytes"] < running["size"]
    assert running["context_length"] == 96 and running["size_vram"] == 0
    assert datetime.fromisoformat(running["expires_at"]).year > 2100
    assert datetime.fromisoformat(listed["modified_at"]) < datetime.now(UTC)


def test_the_model_is_shown(http, chat_model):
    for body in ({"model": MODEL}, {"name": f"{MODEL}:latest"}, {"model": MODEL, "verbose": True, "options": {}}):
        shown = http.post("/api/show", json=body).json()
    info = shown["model_info"]
    assert shown["capabilities"] == ["completion", "tools"] and info["general.architecture"] == "llama"
    assert info["llama.context_length"] == 96, "the length that is configured, and not that of the training"
    stored = load_file(Path(chat_model) / "model.safetensors").values()
    assert info["general.parameter_count"] == sum(tensor.numel() for tensor in stored)
    assert shown["parameters"].split() == ["num_ctx", "96"]
    assert "messages" in shown["template"] and MODEL in shown["modelfile"]


def test_what_it_is_asked_for_first(http):
    assert http.get("/").text == "Ollama is running" and http.head("/").status_code == 200
    page = http.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.text.startswith("<!doctype html>") and page.headers["vary"] == "Accept"
    version = http.get("/api/version").json()["version"]
    assert [*map(int, version.split("."))] >= [0, 6, 4]  # below it VS Code's Copilot refuses a server
    assert http.head("/api/version").status_code == http.head("/api/tags").status_code == 200


def test_a_pull_of_the_model_succeeds(http):
    response = http.post("/api/pull", json={"model": MODEL})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.splitlines()[-1] == '{"status":"success"}'
    assert http.post("/api/pull", json={"name": f"{MODEL}:latest", "stream": False}).json() == {"status": "success"}


REFUSED = [
    ("POST", "/api/pull", {"model": "qwen3:4b"}, 400, "tokenmill pull qwen3:4b"),
    ("POST", "/api/pull", {}, 400, "model is required"),
    ("DELETE", "/api/delete", {"model": MODEL}, 404, "no model is made, copied, deleted"),
    ("POST", "/api/create", {"model": "new", "from": MODEL}, 404, "there is no such route"),
    ("POST", "/api/embed", {"model": "other", "input": ["a", "b"]}, 404, "model 'other' not found"),
    ("POST", "/api/show", {"model": "other"}, 404, "model 'other' not found"),
    ("POST", "/api/show", {}, 400, "model is required"),
    ("POST", "/api/show", {"model": 5}, 400, "model"),
    ("GET", "/api/chat", None, 405, "Method Not Allowed"),
    ("GET", "/api/blobs/sha256:1", None, 404, "there is no such route"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "words"), REFUSED)
def test_what_would_change_the_models_is_refused_by_the_command(method, path, body, status, words, http):
    response = http.request(method, path, json=body)
    assert response.status_code == status and list(response.json()) == ["error"]
    assert words in response.json()["error"]


@pytest.mark.slow
def test_a_name_with_a_tag_of_its_own(chat_model):
    with (
        served(chat_model, name="me/words:1b") as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=120) as http,
    ):
        assert http.get("/api/tags").json()["models"][0]["name"] == "me/words:1b"
        assert http.post("/api/show", json={"model": "me/words:1b"}).status_code == 200
        assert http.post("/api/show", json={"model": "me/words"}).status_code == 404


def test_names_times_and_numbers():
    assert [*map(tagged, ("a", "a:b", "h:80/a", "h:80/a:b"))] == ["a:latest", "a:b", "h:80/a:latest", "h:80/a:b"]
    assert [*map(_counted, (999, 1500, 134_515_008, 7_000_000_000))] == ["999", "1.5K", "134.52M", "7B"]
    assert all(map(unloads, (0, 0.0, "0", "0s", "0m0s", "-0"))) and not any(map(unloads, (None, "", "10s", -1, 0.5)))


def test_what_the_document_shows(http):
    """Its commands are sent as curl sends them; its table of options has each that is known."""
    page = (Path(__file__).parents[3] / "docs" / "ollama-api.md").read_text(encoding="utf-8")
    commands = [shlex.split(line) for line in page.splitlines() if line.startswith("curl ")]
    assert len(commands) == 4
    for _, url, *more in commands:
        path, body = (
            url.removeprefix("http://localhost:11434"),
            more[1].replace("smollm2-135m", MODEL) if more else None,
        )
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        response = http.request("POST" if body else "GET", path, content=body, headers=form if body else None)
        assert response.status_code == 200 and "error" not in response.text, response.text
    table = page.partition("## Options")[2].partition("## Answers")[0]
    assert {*re.findall(r"`(\w+)`", table)} >= {*OWN, *NEUTRAL, *WITHOUT_EFFECT}


@pytest.mark.slow
@pytest.mark.model
def test_a_gguf_file_and_its_own_chat_template(real_model):
    """What is told of it; and the next turn behind a context is that of the conversation, to the token."""
    settings = {"dtype": "auto", "max_length": 256, "block_size": 16}
    with (
        served(real_model, settings) as server,
        httpx2.Client(base_url=server.url, trust_env=False, timeout=120) as http,
    ):
        details = http.get("/api/tags").json()["models"][0]["details"]
        assert details["format"] == "gguf" and details["quantization_level"].endswith("bits")
        assert details["parameter_size"] == "134.52M"
        options = {"temperature": 0, "num_predict": 12}
        body = {"model": MODEL, "prompt": "My name is Ada.", "stream": False, "options": options}
        first = http.post("/api/generate", json=body, timeout=60).json()
        asked = "What is my name?"
        second = http.post(
            "/api/generate", json=body | {"prompt": asked, "context": first["context"]}, timeout=60
        ).json()
        turns = [("user", body["prompt"]), ("assistant", first["response"]), ("user", asked)]
        messages = [{"role": role, "content": content} for role, content in turns]
        chat = {"model": MODEL, "messages": messages, "stream": False, "options": options, "return_token_ids": True}
        wanted = http.post("/api/chat", json=chat, timeout=60).json()
        assert second["context"] == [*wanted["prompt_token_ids"], *wanted["token_ids"]]
        assert second["response"] == wanted["message"]["content"]
