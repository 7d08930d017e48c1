"""Requests that name no sampling: the model's recommendation goes first, then the defaults of their protocol."""

import json
import shutil

import httpx2
import pytest

from tests.serve.conftest import served
from tokenmill import load
from tokenmill.settings.recommended import OLLAMA, OPENAI, Recommended, in_force, say_origins

# DefaultOptions of Ollama's api/types.go (its docs/modelfile.mdx has the same), by our names.
_XTC = {"xtc_probability": 0.0, "xtc_threshold": 0.1}
OLLAMAS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0, **_XTC, "repetition_penalty": 1.0}
# The API reference of OpenAI: temperature and top_p are 1, and the others are not there.
OPENAIS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **_XTC, "repetition_penalty": 1.0}
QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
OFF = {"do_sample": True, "temperature": 0.5, "top_k": 0, "top_p": 1.0}
MESSAGES = [{"role": "user", "content": "w1 w2"}]
CHAT = {"model": "words", "messages": MESSAGES}

ASKED = {
    "/v1/completions": ({"prompt": "w1 w2", "max_tokens": 3}, OPENAIS),
    "/v1/chat/completions": ({**CHAT, "max_tokens": 3}, OPENAIS),
    "/v1/responses": ({"input": "w1 w2", "max_output_tokens": 3}, OPENAIS),
    "/v1/messages": ({**CHAT, "max_tokens": 3}, OPENAIS),
    "/api/chat": ({**CHAT, "stream": False, "options": {"num_predict": 3}}, OLLAMAS),
    "/api/generate": ({"model": "words", "prompt": "w1 w2", "stream": False, "options": {"num_predict": 3}}, OLLAMAS),
    "/api/generate raw": (
        {"model": "words", "prompt": "w1 w2", "raw": True, "stream": False, "options": {"num_predict": 3}},
        OLLAMAS,
    ),
}


def recommending(model, folder, values):
    path = shutil.copytree(model, folder)
    (path / "generation_config.json").write_text(json.dumps(values))
    return path


class Params(list):
    """The sampling of each request that a server's engine is given."""

    def __init__(self, server):
        inputs = server.driver.core.inputs
        self._made = inputs.sequences
        inputs.sequences = self._noted

    def _noted(self, tokens, params, *more, **others):
        self.append({name: getattr(params, name) for name in OPENAIS})
        return self._made(tokens, params, *more, **others)


@pytest.fixture(scope="module", params=[{}, QWEN3, OFF], ids=["nothing", "some", "off"])
def asked(request, chat_model, tmp_path_factory):
    path = recommending(chat_model, tmp_path_factory.mktemp("model") / "m", request.param)
    with served(path, {"generation_config": True}) as server:
        recommended = {name: value for name, value in request.param.items() if name != "do_sample"}
        yield server, Params(server), recommended


@pytest.mark.parametrize("route", ASKED)
def test_each_protocol_s_defaults_stand_behind_what_the_model_recommends(asked, route):
    server, params, recommended = asked
    body, defaults = ASKED[route]
    with httpx2.Client(base_url=server.url, timeout=120, trust_env=False) as http:
        assert http.post(route.split()[0], json=body).status_code == 200
        assert params[-1] == {**defaults, **recommended}
        own = {"temperature": 0.25, "top_p": 0.5}
        given = {"options": {**body["options"], **own}} if "options" in body else own
        assert http.post(route.split()[0], json={**body, **given}).status_code == 200
        assert params[-1] == {**defaults, **recommended, **own}, "the request goes first"


def test_the_server_tells_values_and_origins(asked):
    server, _, recommended = asked
    with httpx2.Client(base_url=server.url, timeout=120, trust_env=False) as http:
        told = http.get("/server_info").json()["sampling"]
        page = http.get("/", headers={"Accept": "text/html"}).text
        shown = http.post("/api/show", json={"model": "words"}).json()["parameters"]
    for path, defaults in (("/v1", OPENAIS), ("/api", OLLAMAS)):
        assert {name: each["value"] for name, each in told[path].items()} == {**defaults, **recommended}
        for name, each in told[path].items():
            protocol = {"/v1": OPENAI, "/api": OLLAMA}[path]
            otherwise = protocol.origin if name in protocol else "tokenmill's default"
            assert each["origin"] == ("generation_config.json" if name in recommended else otherwise)
    for name, value in {**OPENAIS, **recommended}.items():
        assert f'id="set-{name}" type="number" step="any" placeholder="{value}"' in page
    assert ("(generation_config.json)" in page) == bool(recommended)
    assert {line.split()[0] for line in shown.splitlines()} == {"num_ctx", *recommended}, "those of a Modelfile"


def test_the_library_takes_the_likeliest_token_where_nothing_is_recommended(chat_model):
    engine = load(chat_model, dtype="float32", max_length=96, generation_config=True)
    assert engine.core.inputs.params({}).temperature == 0


def test_values_are_said_with_their_origins():
    maker = Recommended({"temperature": 0.2, "top_p": 0.9, "min_p": 0.0}, "the maker's model card")
    assert say_origins(in_force(maker, OLLAMA)) == (
        "temperature 0.2, top_p 0.9 (the maker's model card); top_k 40 (Ollama's default)"
    )
    assert say_origins(in_force(Recommended(), OPENAI)) == "temperature 1.0 (OpenAI's default)"
    assert Recommended({}, "a file").origin == ""
