"""Several models behind one port: each request is answered by the model that it names, wherever that is."""

import json
import threading
import time
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.peft_adapters import save_adapter
from tests.serve.models.conftest import PROMPTS, loaded, several
from tests.tiny_encoders import save_encoder
from tokenmill.serve.ollama.names import keep_alive_s


@pytest.fixture(scope="module")
def server(paths):
    with several(paths, room=2) as server:
        yield server


def complete(server, name, prompt, **more):
    body = {"model": name, "prompt": prompt, "max_tokens": 6, "temperature": 0, **more}
    return server.http.post("/v1/completions", json=body)


def text_of(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["text"]


def until(is_so):
    """Waits until something is so, which must come."""
    while not is_so():
        time.sleep(0.002)


def test_each_request_is_for_the_model_that_it_names(server, paths, wanted):
    for name in (*paths, *paths):
        for prompt in PROMPTS:
            answer = complete(server, name, prompt)
            assert text_of(answer) == wanted[name, prompt] and answer.json()["model"] == name
    assert len(loaded(server)) == 2


def test_without_a_name_it_is_the_first_one(server, wanted):
    assert text_of(complete(server, None, PROMPTS[0])) == wanted["words", PROMPTS[0]]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            "/v1/completions",
            {"prompt": "w1"},
            "the model 'wordsx' is not served here; there is 'words' and 'bytes' and",
        ),
        ("/v1/messages", {"messages": [{"role": "user", "content": "w1"}], "max_tokens": 1}, "is 'words' meant?"),
        ("/api/chat", {"messages": [{"role": "user", "content": "w1"}]}, "model 'wordsx' not found: there is 'words'"),
        ("/api/show", {}, "model 'wordsx' not found"),
        ("/v1/embeddings", {"input": "w1"}, "is not served here"),
    ],
)
def test_a_name_that_there_is_not(path, body, said, server):
    before = loaded(server)
    answer = server.http.post(path, json={"model": "wordsx", **body})
    assert answer.status_code == 404 and said in json.dumps(answer.json()).replace('\\"', '"')
    assert loaded(server) == before


def test_what_is_no_json_loads_nothing(paths):
    with several(paths) as server:
        assert server.http.post("/v1/completions", content=b"{", headers={"content-type": "application/json"}).is_error
        assert server.http.post("/v1/completions", content=b"{}").status_code == 415
        assert loaded(server) == []


def test_all_models_are_told_and_none_is_loaded_for_it(paths):
    with several(paths, options={"keys": ("a-key",)}) as server:
        server.http.headers["authorization"] = "Bearer a-key"
        found = server.http.get("/v1/models").json()
        assert [each["id"] for each in found["data"]] == [*paths]
        assert {each["state"] for each in found["data"]} == {"unloaded"}
        assert found["data"][0]["capabilities"] == ["completion", "tools"]
        assert [each["max_model_len"] for each in found["data"]] == [96] * 3
        assert server.http.get("/v1/models/bytes").json()["id"] == "bytes"
        assert server.http.get("/v1/models/byte").status_code == 404
        other = server.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
        assert [each["id"] for each in other["data"]] == [*paths] and other["last_id"] == "other"
        tags = server.http.get("/api/tags").json()["models"]
        assert [each["name"] for each in tags] == [f"{name}:latest" for name in paths]
        shown = server.http.post("/api/show", json={"model": "other"}).json()
        assert shown["details"]["family"] == "qwen2" and shown["capabilities"] == ["completion", "tools"]
        assert server.http.get("/api/ps").json() == {"models": []}
        assert server.http.post("/api/pull", json={"name": "words", "stream": False}).json() == {"status": "success"}
        for path in ("/health", "/ready", "/version", "/api/version", "/load", "/server_info", "/docs", "/v1/cache"):
            assert server.http.get(path).status_code == 200, path
        assert "Ollama is running" in server.http.get("/").text
        enum = server.http.get("/openapi.json").json()["components"]["schemas"]["CompletionBody"]["properties"]["model"]
        assert enum == {"enum": [*paths, None]}
        assert loaded(server) == []


def test_what_is_told_of_a_model_does_not_change_when_it_is_unloaded(paths):
    with several(paths, room=1) as server:
        assert complete(server, "words", "w1").status_code == 200
        first = [server.http.post("/api/show", json={"model": "words"}).json(), server.http.get("/api/tags").json()]
        (running,) = server.http.get("/api/ps").json()["models"]
        assert running["name"] == "words:latest" and running["expires_at"].startswith("2")
        assert complete(server, "bytes", "a").status_code == 200
        assert loaded(server) == ["bytes"]
        again = [server.http.post("/api/show", json={"model": "words"}).json(), server.http.get("/api/tags").json()]
        assert again[0] == first[0]
        assert again[1]["models"][0] == first[1]["models"][0]
        states = {each["id"]: each["state"] for each in server.http.get("/v1/models").json()["data"]}
        assert states == {"words": "unloaded", "bytes": "loaded", "other": "unloaded"}


def test_metrics_are_one_page(server):
    complete(server, "words", "w1")
    complete(server, "bytes", "a")
    families = list(text_string_to_metric_families(server.http.get("/metrics").text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    (generated,) = [family for family in families if family.name == "tokenmill:generation_tokens"]
    assert {sample.labels["model_name"] for sample in generated.samples if sample.name.endswith("_total")} == set(
        loaded(server)
    )
    (states,) = [family for family in families if family.name == "tokenmill:model_loaded"]
    found = {sample.labels["model_name"] for sample in states.samples if sample.value}
    assert found == set(loaded(server))


def test_a_request_of_ollama_says_how_long_its_model_stays(server):
    def ask(**more):
        body = {"model": "BYTES", "prompt": "a", "stream": False, "options": {"num_predict": 2}, **more}
        answer = server.http.post("/api/generate", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    ask(keep_alive="10m")
    (running,) = [each for each in server.http.get("/api/ps").json()["models"] if each["name"] == "bytes:latest"]
    assert running["expires_at"] < "2100"
    ask(keep_alive=-1)
    (running,) = [each for each in server.http.get("/api/ps").json()["models"] if each["name"] == "bytes:latest"]
    assert running["expires_at"] > "2100"
    said = ask(prompt="", keep_alive=0)
    assert said["done_reason"] == "unload" and "warnings" not in said
    until(lambda: "bytes" not in loaded(server))
    (hosted,) = [each for each in server.residents.all if each.name == "bytes"]
    loads = hosted.num_loads
    assert ask(prompt="", keep_alive=0)["done_reason"] == "unload"
    assert hosted.num_loads == loads, "nothing is loaded to be unloaded"
    ask(keep_alive=None)
    assert "bytes" in loaded(server), "what was said was of its stay before"
    answer = server.http.post("/api/generate", json={"model": "bytes", "prompt": "a", "keep_alive": 0, "format": 5})
    assert answer.status_code == 400 and hosted.keep_alive_s is None, "a request that is refused sets nothing"
    ask(keep_alive="5m")
    answer = server.http.post("/api/generate", json={"model": "bytes", "prompt": "a", "keep_alive": "soon"})
    assert answer.status_code == 400 and "keep_alive = 'soon' is not allowed" in answer.text


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        *((None, None), ("", None), (True, None), ("soon", None), ([5], None)),
        *((0, (0.0,)), ("0", (0.0,)), (-1, (None,)), ("-1m", (None,)), (30, (30.0,)), ("30", (30.0,))),
        *(
            ("5m", (300.0,)),
            ("1h30m", (5400.0,)),
            ("1.5s", (1.5,)),
            ("250ms", (0.25,)),
            (1e300, (None,)),
            (10**400, (None,)),
            (float("nan"), (None,)),
        ),
    ],
)
def test_durations(given, seconds):
    assert keep_alive_s(given) == seconds


def test_streams_are_those_of_the_model(server, paths, wanted):
    for name in paths:
        body = {"model": name, "prompt": PROMPTS[0], "max_tokens": 6, "temperature": 0, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line[6:] for line in answer.iter_lines() if line.startswith("data: {")]
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == wanted[name, PROMPTS[0]]


def test_a_stream_is_finished_before_its_model_goes(paths, wanted):
    """The other model's request waits for it, and so do later ones for the model that goes."""
    with several(paths, room=1) as server:
        body = {"model": "words", "prompt": PROMPTS[0], "max_tokens": 80, "temperature": 0, "stream": True}
        texts = {}

        def ask(key, name):
            texts[key] = text_of(complete(server, name, PROMPTS[0]))

        with server.http.stream("POST", "/v1/completions", json={**body, "ignore_eos": True}) as answer:
            lines = answer.iter_lines()
            first = next(line for line in lines if line.startswith("data: {"))
            threads = [threading.Thread(target=ask, args=each) for each in ((1, "bytes"), (2, "words"), (3, "other"))]
            for thread in threads:
                thread.start()
            number = len([line for line in lines if line.startswith("data: {")])
            assert first and number > 1
        for thread in threads:
            thread.join()
        assert texts == {1: wanted["bytes", PROMPTS[0]], 2: wanted["words", PROMPTS[0]], 3: wanted["other", PROMPTS[0]]}


def test_prefixes_are_found_when_a_model_comes_back(paths, tmp_path):
    prompt = " ".join(f"w{number}" for number in range(40))
    with several(paths, room=1, settings={"prefix_dir": str(tmp_path)}) as server:
        before = complete(server, "words", prompt).json()
        assert before["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        complete(server, "bytes", "a")
        assert loaded(server) == ["bytes"]
        after = complete(server, "words", prompt).json()
        assert after["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
        assert after["choices"] == before["choices"]


def test_sessions_are_of_one_model(paths, tmp_path):
    with several(paths, room=1, options={"session_dir": tmp_path}) as server:
        saved = server.http.post("/v1/sessions/talk/save", json={"model": "other", "prompt": PROMPTS[2]})
        assert saved.status_code == 200, saved.text
        assert complete(server, "words", "w1").status_code == 200
        assert server.http.post("/v1/sessions/talk/restore?model=words").status_code == 404
        assert loaded(server) == ["words"]
        found = server.http.post("/v1/sessions/talk/restore")
        assert found.status_code == 200 and found.json()["tokens"] == saved.json()["tokens"], found.text
        assert loaded(server) == ["other"]
        assert server.http.post("/v1/sessions/..%2Fx/erase").status_code in (400, 404)
        assert server.http.post("/v1/sessions/talk/erase").status_code == 200


def test_adapters_come_back_with_their_model(paths, tmp_path):
    save_adapter("llama", tmp_path / "first")
    with several(paths, room=1.5, options={"lora_folder": tmp_path}) as server:
        body = {"model": "words", "lora_name": "mine", "lora_path": "first"}
        assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
        text = text_of(complete(server, "mine", PROMPTS[0]))
        assert text != text_of(complete(server, "words", PROMPTS[0]))
        assert text_of(complete(server, "bytes", "a")) is not None
        assert [each["id"] for each in server.http.get("/v1/models").json()["data"]] == [
            "words",
            "mine",
            "bytes",
            "other",
        ]
        assert text_of(complete(server, "mine", PROMPTS[0])) == text
        assert loaded(server) == ["words"]


def test_adapters_that_clients_load_are_counted(paths, tmp_path):
    """And another model goes where there is no room for them beside it."""
    save_adapter("llama", tmp_path / "first")
    num_bytes = (tmp_path / "first" / "adapter_model.safetensors").stat().st_size
    with several(paths, room=2, options={"lora_folder": tmp_path}) as server:
        assert complete(server, "bytes", "a").status_code == complete(server, "words", PROMPTS[0]).status_code == 200
        assert loaded(server) == ["words", "bytes"]
        facts = {each["model"]: each["bytes"] for each in server.http.get("/server_info").json()["models"]}
        body = {"model": "words", "lora_name": "mine", "lora_path": "first"}
        assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
        until(lambda: loaded(server) == ["words"])
        now = {each["model"]: each["bytes"] for each in server.http.get("/server_info").json()["models"]}
        assert num_bytes / 4 < now["words"] - facts["words"] <= num_bytes and now["bytes"] == facts["bytes"]
        until(lambda: server.http.get("/server_info").json()["memory"]["used_bytes"] == now["words"])
        assert complete(server, "bytes", "a").status_code == 200
        assert complete(server, "mine", PROMPTS[0]).status_code == 200


def test_an_encoder_stands_beside_decoders(paths, tmp_path):
    encoder = str(save_encoder("bert", tmp_path / "encoder"))
    with several(
        {"words": paths["words"], "vectors": encoder}, settings={"max_length": None, "block_size": None}
    ) as server:
        assert server.http.get("/v1/models/vectors").json()["capabilities"] == ["embedding"]
        found = server.http.post("/v1/embeddings", json={"model": "vectors", "input": [[1, 2, 3], [4, 5]]})
        assert found.status_code == 200 and len(found.json()["data"]) == 2, found.text
        assert complete(server, "vectors", [1, 2]).status_code == 400
        hi = [{"role": "user", "content": "w1"}]
        for route, body in (
            ("/v1/chat/completions", {"messages": hi}),
            ("/v1/messages", {"messages": hi, "max_tokens": 2}),
            ("/v1/responses", {"input": "w1"}),
            ("/completion", {"prompt": [1, 2]}),
            ("/infill", {"input_prefix": "a", "input_suffix": "b"}),
            ("/v1/completions", {"prompt": "a", "suffix": "b"}),
            ("/api/chat", {"messages": hi}),
            ("/api/generate", {"prompt": "w1"}),
        ):
            refused = server.http.post(route, json={"model": "vectors", **body})
            assert refused.status_code == 400 and "gives vectors of texts" in refused.text, refused.text
        assert complete(server, "words", "w1").status_code == 200


def test_files_and_batches_are_refused(server):
    assert server.http.get("/v1/batches").json()["error"]["code"] == "no_batches"


def test_a_model_that_is_damaged_while_it_is_away(paths, tmp_path):
    damaged = {"words": paths["words"], "gone": str(tmp_path / "none")}
    with several(damaged) as server:
        answer = complete(server, "gone", "w1")
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "model_not_loaded"
        assert str(tmp_path) not in answer.text and "Retry-After" in answer.headers
        assert [each["id"] for each in server.http.get("/v1/models").json()["data"]] == ["words"]
        assert [each["name"] for each in server.http.get("/api/tags").json()["models"]] == ["words:latest"]
        for answer in (server.http.get("/v1/models/gone"), server.http.post("/api/show", json={"model": "gone"})):
            assert answer.status_code == 503 and str(tmp_path) not in answer.text
        assert complete(server, "words", "w1").status_code == 200


def test_an_engine_that_fails_is_loaded_anew(paths, wanted):
    with several(paths) as server:
        assert complete(server, "words", PROMPTS[0]).status_code == 200
        words = server.residents.all[0]

        def fail():
            raise ZeroDivisionError

        words.served.engine.core.loop.step = fail
        assert complete(server, "words", PROMPTS[0]).status_code == 503
        assert text_of(complete(server, "bytes", PROMPTS[0])) == wanted["bytes", PROMPTS[0]]
        assert text_of(complete(server, "words", PROMPTS[0])) == wanted["words", PROMPTS[0]]
        assert words.num_loads == 2 and server.http.get("/health").status_code == 200


def test_who_leaves_while_a_model_is_loaded_harms_nobody(paths, wanted):
    with several(paths, room=1) as server:
        assert complete(server, "words", "w1").status_code == 200
        with pytest.raises(Exception, match="timed out"):
            server.http.post("/v1/completions", json={"model": "bytes", "prompt": "a"}, timeout=0.001)
        assert text_of(complete(server, "other", PROMPTS[0])) == wanted["other", PROMPTS[0]]
        until(lambda: not any(each.users or each.waiters for each in server.residents.all))


def test_at_the_end_new_requests_are_refused(paths):
    with several(paths) as server:
        assert complete(server, "words", "w1").status_code == 200
        server.refuse_new()
        for name in paths:
            answer = complete(server, name, "w1")
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "shutting_down"
        assert server.http.get("/ready").status_code == 503


def test_the_memory_of_a_model_is_given_back(paths):
    """Nothing holds an engine that was unloaded."""
    import gc
    import weakref

    with several(paths, room=1) as server:
        known = []
        for name in (*paths, *paths):
            assert complete(server, name, PROMPTS[0]).status_code == 200
            hosted = next(each for each in server.residents.all if each.name == name)
            known.append((weakref.ref(hosted.served.engine.core), weakref.ref(hosted.served)))
        gc.collect()
        assert [core() is not None for core, _ in known] == [False] * 5 + [True]
        assert [served() is not None for _, served in known] == [False] * 5 + [True]


def test_names_are_found_in_letters_of_either_case(paths, wanted):
    """Ollama's clients add a tag; a name that begins as Anthropic's do may be a model's own."""
    named = {"Org/Words": paths["words"], "claude-local": paths["bytes"]}
    messages = {"messages": [{"role": "user", "content": PROMPTS[0]}], "max_tokens": 6, "temperature": 0}
    with several(named) as server:
        for name in ("org/words", "ORG/WORDS:LATEST", "Org/Words:latest"):
            answer = complete(server, name, PROMPTS[0])
            assert text_of(answer) == wanted["words", PROMPTS[0]] and answer.json()["model"] == "Org/Words"
            assert server.http.post("/api/show", json={"model": name}).status_code == 200
            assert server.http.post("/tokenize", json={"model": name, "prompt": "w1"}).status_code == 200
        assert text_of(complete(server, "claude-local", PROMPTS[0])) == wanted["bytes", PROMPTS[0]]
        answer = server.http.post("/v1/messages", json={"model": "claude-local", **messages})
        assert answer.json()["model"] == "claude-local"
        before = loaded(server)
        assert complete(server, "claude-other", "w1").status_code == 404 and loaded(server) == before
        assert server.http.post("/v1/messages", json={"model": "claude-other", **messages}).status_code == 200


def test_an_adapter_takes_no_other_models_name(paths, tmp_path):
    for seed, name in enumerate(("first", "second")):
        save_adapter("llama", tmp_path / name, seed=seed)
    two = {"words": paths["words"], "twin": paths["words"], "bytes": paths["bytes"]}
    with several(two, options={"lora_folder": tmp_path}) as server:

        def load_adapter(model, name, path="first", **more):
            body = {"model": model, "lora_name": name, "lora_path": path, **more}
            return server.http.post("/v1/load_lora_adapter", json=body)

        assert load_adapter("words", "Bytes").status_code == 409 and loaded(server) == []
        assert load_adapter("words", "mine").status_code == 200
        refused = load_adapter("twin", "mine")
        assert refused.status_code == 409 and "the name of another model, or of its adapter" in refused.text


def test_adapters_that_were_replaced_or_unloaded_stay_so(paths, tmp_path):
    for seed, name in enumerate(("first", "second", "third")):
        save_adapter("llama", tmp_path / name, seed=seed)
    given = {"lora_modules": f"a={tmp_path / 'first'},b={tmp_path / 'second'}", "max_loras": 4}
    twins = {"words": paths["words"], "twin": paths["words"]}
    with several(twins, room=1.5, options={"lora_folder": tmp_path}) as server:
        words = server.residents.all[0]
        object.__setattr__(words.setup, "engine", replace(words.setup.engine, **given))
        first = text_of(complete(server, "a", PROMPTS[0]))
        body = {"model": "words", "lora_name": "a", "lora_path": "third", "load_inplace": True}
        assert server.http.post("/v1/load_lora_adapter", json=body).status_code == 200
        assert server.http.post("/v1/unload_lora_adapter", json={"model": "words", "lora_name": "b"}).status_code == 200
        replaced = text_of(complete(server, "a", PROMPTS[0]))
        assert replaced != first
        assert complete(server, "twin", "w1").status_code == 200 and loaded(server) == ["twin"]
        assert text_of(complete(server, "a", PROMPTS[0])) == replaced
        assert complete(server, "b", PROMPTS[0]).status_code == 404
