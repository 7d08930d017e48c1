"""/openapi.json tells the truth: answers have the forms that it gives, and refusals the statuses."""

import httpx2
import pytest

from tests.serve.conftest import MODEL, served
from tokenmill.serve.facts import answer_schema as forms
from tokenmill.serve.facts import protocol_schema as protocols
from tokenmill.serve.ollama import answer_schema as ollama

OLLAMA = {"model": MODEL, "stream": False, "logprobs": True, "top_logprobs": 2, "options": {"num_predict": 3, "x": 1}}
MESSAGES = [{"role": "user", "content": "w1 w2"}]
COMPLETION = {"prompt": "w1 w2", "max_tokens": 3, "logprobs": 2, "echo": True, "return_token_ids": True, "unknown": 1}
COMPLETION |= {"receipt": True}
CHAT = {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}
CHAT |= {"receipt": True}
SESSION = "/v1/sessions/tale"
ANSWERS = [
    ("POST", "/v1/completions", {"prompt": "w1"}, forms.CompletionAnswer),
    ("POST", "/v1/completions", COMPLETION, forms.CompletionAnswer),
    ("POST", "/v1/chat/completions", {"messages": MESSAGES}, forms.ChatAnswer),
    ("POST", "/v1/chat/completions", CHAT, forms.ChatAnswer),
    ("POST", "/v1/messages", {"messages": MESSAGES, "max_tokens": 3}, protocols.MessageAnswer),
    ("POST", "/v1/messages/count_tokens", {"messages": MESSAGES}, protocols.CountAnswer),
    ("POST", "/v1/responses", {"input": "w1", "max_output_tokens": 3}, protocols.ResponseAnswer),
    ("POST", "/api/chat", OLLAMA | {"messages": MESSAGES}, ollama.OllamaChatAnswer),
    ("POST", "/api/generate", OLLAMA | {"prompt": "w1"}, ollama.OllamaGenerateAnswer),
    ("POST", "/api/generate", {"model": MODEL}, ollama.OllamaGenerateAnswer),
    ("GET", "/api/tags", None, ollama.OllamaTagsAnswer),
    ("GET", "/api/ps", None, ollama.OllamaPsAnswer),
    ("GET", "/api/version", None, ollama.OllamaVersionAnswer),
    ("POST", "/api/show", {"model": MODEL}, ollama.OllamaShowAnswer),
    ("POST", "/api/pull", {"model": MODEL, "stream": False}, ollama.OllamaStatus),
    ("POST", "/tokenize", {"prompt": "w1"}, forms.TokensAnswer),
    ("GET", "/tokenizer_info", None, forms.TokenizerAnswer),
    ("POST", "/detokenize", {"tokens": [1]}, forms.TextAnswer),
    ("POST", f"{SESSION}/save", {"prompt": "w1 w2"}, forms.SavedAnswer),
    ("POST", f"{SESSION}/restore", None, forms.RestoredAnswer),
    ("POST", f"{SESSION}/erase", None, forms.ErasedAnswer),
    ("GET", "/v1/models", None, forms.ModelsAnswer),
    ("GET", f"/v1/models/{MODEL}", None, forms.ModelAnswer),
    ("GET", "/health", None, forms.StatusAnswer),
    ("GET", "/ping", None, forms.StatusAnswer),
    ("POST", "/ping", None, forms.StatusAnswer),
    ("GET", "/load", None, forms.LoadAnswer),
    ("GET", "/server_info", None, forms.ServerAnswer),
    ("GET", "/ready", None, forms.StatusAnswer),
    ("GET", "/version", None, forms.VersionAnswer),
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


def test_answers_have_their_forms(locked, document):
    described = {path.replace("{name}", MODEL if "models" in path else "tale"): path for path in document["paths"]}
    for method, path, body, form in ANSWERS:
        response = locked.request(method, path, json=body)
        assert response.status_code == 200, response.text
        form.model_validate_json(response.content)
        given = operations(document)[method.lower(), described[path]]["responses"]["200"]["content"]
        assert given["application/json"]["schema"]["$ref"].endswith(f"/{form.__name__}")


def test_every_refusal_has_the_same_form(document):
    for where, operation in operations(document).items():
        statuses = set(operation["responses"]) - {"200"}
        assert {"401", "413", "431", "500"} - (
            {"401"} if {"/health", "/ping", "/ready"} & set(where) else set()
        ) <= statuses
        assert "422" not in statuses
        for status in statuses:
            (form,) = operation["responses"][status]["content"].values()
            names = {"/v1/messages": "MessagesError", "/api/": "OllamaError"}
            name = next((name for prefix, name in names.items() if where[1].startswith(prefix)), "ErrorAnswer")
            assert form["schema"]["$ref"].endswith(f"/{name}"), where


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
    forms.ErrorAnswer.model_validate_json(response.content)
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
