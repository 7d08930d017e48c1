"""/openapi.json tells the truth: every route is in it, with the statuses that it answers with."""

import httpx2
import pytest

from tests.serve.conftest import MODEL, served
from tokenmill.serve.routes import ROUTES, routes_at

OLLAMA = {"model": MODEL, "stream": False, "logprobs": True, "top_logprobs": 2, "options": {"num_predict": 3, "x": 1}}
MESSAGES = [{"role": "user", "content": "w1 w2"}]
COMPLETION = {"prompt": "w1 w2", "max_tokens": 3, "logprobs": 2, "echo": True, "return_token_ids": True, "unknown": 1}
COMPLETION |= {"receipt": True}
CHAT = {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
CHAT |= {"receipt": True}
SESSION = "/v1/sessions/tale"
ANSWERS = [
    ("POST", "/v1/completions", {"prompt": "w1"}),
    ("POST", "/v1/completions", COMPLETION),
    ("POST", "/v1/chat/completions", {"messages": MESSAGES}),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/messages", {"messages": MESSAGES, "max_tokens": 3}),
    ("POST", "/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("POST", "/v1/responses", {"input": "w1", "max_output_tokens": 3}),
    ("POST", "/api/chat", OLLAMA | {"messages": MESSAGES}),
    ("POST", "/api/generate", OLLAMA | {"prompt": "w1"}),
    ("POST", "/api/generate", {"model": MODEL}),
    ("GET", "/api/tags", None),
    ("GET", "/api/ps", None),
    ("GET", "/api/version", None),
    ("POST", "/api/show", {"model": MODEL}),
    ("POST", "/api/pull", {"model": MODEL, "stream": False}),
    ("POST", "/tokenize", {"prompt": "w1"}),
    ("GET", "/tokenizer_info", None),
    ("POST", "/detokenize", {"tokens": [1]}),
    ("POST", f"{SESSION}/save", {"prompt": "w1 w2"}),
    ("POST", f"{SESSION}/restore", None),
    ("POST", f"{SESSION}/erase", None),
    ("GET", "/v1/models", None),
    ("GET", f"/v1/models/{MODEL}", None),
    ("GET", "/health", None),
    ("GET", "/ping", None),
    ("POST", "/ping", None),
    ("GET", "/load", None),
    ("GET", "/server_info", None),
    ("GET", "/ready", None),
    ("GET", "/version", None),
]


@pytest.fixture(scope="module")
def locked(chat_model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sessions")
    folders = {"session_dir": directory, "batch_dir": directory / "batches"}
    with served(chat_model, keys=("one-key",), **folders) as server:
        headers = {"Authorization": "Bearer one-key"}
        with httpx2.Client(base_url=server.url, headers=headers, timeout=120, trust_env=False) as http:
            yield http


@pytest.fixture(scope="module")
def document(locked):
    return locked.get("/openapi.json").json()


def operations(document):
    return {(method, path): each for path, all_of in document["paths"].items() for method, each in all_of.items()}


def test_every_route_answers(locked, document):
    for method, path, body in ANSWERS:
        response = locked.request(method, path, json=body)
        assert response.status_code == 200, response.text
        (route,) = [route for route in routes_at(path) if route.method == method]
        kinds = operations(document)[method.lower(), route.path.replace(":path", "")]["responses"]["200"]["content"]
        assert response.headers["content-type"].partition(";")[0] in kinds


def test_every_route_is_in_it(document):
    shown = {(route.method.lower(), route.path.replace(":path", "")) for route in ROUTES if not route.is_hidden}
    assert set(operations(document)) == shown


def test_refusals_have_their_statuses(document):
    for (_, path), operation in operations(document).items():
        statuses = set(operation["responses"]) - {"200"}
        is_open = path in ("/health", "/ping", "/ready")
        assert {"413", "431", "500"} <= statuses and ("401" in statuses) == (not is_open)
        assert "422" not in statuses


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", {}, 400),
        ("POST", "/v1/completions", {"prompt": "w1", "model": "gpt-4"}, 404),
        ("GET", "/v1/models/gpt-4", None, 404),
        ("POST", f"{SESSION}/restore", None, 404),
        ("PUT", "/v1/models", None, 405),
        ("GET", "/no/such/path", None, 404),
    ],
)
def test_refusals_have_it_too(locked, method, path, body, status):
    response = locked.request(method, path, json=body)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    assert ("allow" in response.headers) == (status == 405)


def test_keys_are_wanted_where_it_says_so(document, server):
    wanted = {path for (_, path), each in operations(document).items() if each["security"]}
    assert wanted == set(document["paths"]) - {"/health", "/ping", "/ready"}
    without = httpx2.get(f"{server.url}/openapi.json", timeout=60).json()
    assert not any(each["security"] for each in operations(without).values())
    assert all("403" in each["responses"] for each in operations(without).values())


def test_bodies_have_ranges_and_name_the_model(document):
    properties = document["components"]["schemas"]["CompletionBody"]["properties"]
    assert properties["model"]["enum"] == [MODEL, None]
    assert properties["guided_decoding"]["enum"] == ["", [], None]
    assert {"type": "object", "additionalProperties": True} in properties["response_format"]["anyOf"]
    assert properties["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 100}
    assert properties["logprobs"]["anyOf"][0]["maximum"] == 20


def test_streams_are_documented(document):
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert "text/event-stream" in document["paths"][path]["post"]["responses"]["200"]["content"]
    for path in ("/api/chat", "/api/generate"):
        assert "application/x-ndjson" in document["paths"][path]["post"]["responses"]["200"]["content"]
