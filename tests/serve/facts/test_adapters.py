"""Adapters over HTTP: named as models on every route, in the lists, loaded and unloaded by vLLM's routes."""

import io
import json
import threading

import anthropic
import httpx2
import openai
import pytest

from tests.peft_adapters import save_adapter
from tests.serve.conftest import MODEL, SETTINGS, served
from tests.serve.sessions.test_batches import client_of, ended, jsonl, line
from tokenmill import ConfigError, load

PROMPT = "w3 w14 w15 w9 w2 w6"
MESSAGES = [{"role": "user", "content": PROMPT}]
SAYS = {"max_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(("first", "second", "third")):
        save_adapter("llama", folder / name, seed=seed)
    save_adapter("gpt2", folder / "foreign", target_modules=["c_attn"])
    return folder


@pytest.fixture(scope="module")
def server(chat_model, folder):
    modules = ",".join(f"{name}={folder / name}" for name in ("first", "second"))
    with served(chat_model, {"lora_modules": modules, "max_loras": 4}, lora_folder=folder) as server:
        yield server


@pytest.fixture(scope="module")
def wanted(chat_model, folder):
    """The texts of a quiet engine, by the name of the adapter."""
    with load(chat_model, **SETTINGS, speculate="off") as quiet:
        for name in ("first", "second", "third"):
            quiet.load_adapter(name, folder / name)
        texts = {
            name: (
                quiet.generate(PROMPT, max_new_tokens=8, adapter=name).text,
                quiet.chat(MESSAGES, max_new_tokens=8, adapter=name).text,
            )
            for name in (None, *quiet.adapters)
        }
    assert len(set(texts.values())) == 4
    return texts


@pytest.mark.parametrize("name", [None, "first", "second", "second:latest"])
def test_every_protocol_names_an_adapter_as_its_model(name, server, http, client, wanted):
    model, (text, answer) = name or MODEL, wanted[name and name.removesuffix(":latest")]
    done = client.completions.create(model=model, prompt=PROMPT, **SAYS)
    assert done.choices[0].text == text and done.model == model.removesuffix(":latest")
    done = client.chat.completions.create(model=model, messages=MESSAGES, **SAYS)
    assert done.choices[0].message.content == answer
    pieces = client.chat.completions.create(model=model, messages=MESSAGES, stream=True, **SAYS)
    assert "".join(each.choices[0].delta.content or "" for each in pieces if each.choices) == answer
    done = client.responses.create(model=model, input=PROMPT, max_output_tokens=8, temperature=0)
    assert done.output_text == answer
    said = {"model": model, "messages": MESSAGES, "options": {"num_predict": 8, "temperature": 0}, "stream": False}
    assert http.post("/api/chat", json=said).json()["message"]["content"] == answer
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as other:
        done = other.messages.create(model=model, messages=MESSAGES, max_tokens=8, extra_body={"temperature": 0})
        assert done.content[0].text == answer


def test_several_at_the_same_time(client, wanted):
    """A request gets the text of its own adapter, whatever runs beside."""
    names = [None, "first", "second"] * 5
    found: list[str | None] = [None] * len(names)

    def ask(number):
        done = client.completions.create(model=names[number] or MODEL, prompt=PROMPT, **SAYS)
        found[number] = done.choices[0].text

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted[name][0] for name in names]


def test_the_lists_have_them(server, http, client, folder):
    cards = {each.id: each.model_dump() for each in client.models.list()}
    assert [*cards][:3] == [MODEL, "first", "second"]
    assert cards["first"]["parent"] == MODEL and cards["first"]["root"] == "first"
    assert "parent" not in cards[MODEL]
    assert client.models.retrieve("second").id == "second"
    tags = http.get("/api/tags").json()["models"]
    assert [each["name"] for each in tags][:3] == [f"{MODEL}:latest", "first:latest", "second:latest"]
    assert tags[1]["digest"] == server.driver.core.adapters.by_name["first"].digest.hex()
    assert http.post("/api/show", json={"model": "first"}).json()["details"]["parent_model"] == MODEL
    with anthropic.Anthropic(base_url=server.url, api_key="none") as other:
        assert [each.id for each in other.models.list()][:3] == [MODEL, "first", "second"]


def test_a_name_that_is_not_served_gets_the_nearest(client):
    with pytest.raises(openai.NotFoundError, match="there is 'words' and 'first' and 'second'; is 'second' meant"):
        client.completions.create(model="secnd", prompt=PROMPT)


def test_fingerprints_tell_adapters_apart(client):
    """A stream that goes on elsewhere goes on only where the adapter has the same bytes."""
    prints = {client.completions.create(model=name, prompt=PROMPT, max_tokens=1).system_fingerprint
              for name in (MODEL, "first", "second")}  # fmt: skip
    assert len(prints) == 3


def test_vectors_and_log_probabilities_are_an_adapters(http):
    vectors = [http.post("/v1/embeddings", json={"model": name, "input": PROMPT}).json()["data"][0]["embedding"]
               for name in (MODEL, "first", "second")]  # fmt: skip
    assert len(set(map(tuple, vectors))) == 3
    asked = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 0}
    found = [str(http.post("/v1/completions", json={"model": name, **asked}).json()["choices"][0]["prompt_logprobs"])
             for name in (MODEL, "first", "second")]  # fmt: skip
    assert len(set(found)) == 3


def test_lines_of_a_batch_name_adapters(chat_model, folder, tmp_path, wanted):
    modules = f"first={folder / 'first'},second={folder / 'second'}"
    lines = [
        line(number, "/v1/completions", {"model": name or MODEL, "prompt": PROMPT, **SAYS})
        for number, name in enumerate((None, "first", "second"))
    ]
    with served(chat_model, {"lora_modules": modules}, batch_dir=tmp_path) as server, client_of(server) as client:
        file = client.files.create(file=io.BytesIO(jsonl(lines)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        rows = [json.loads(row) for row in client.files.content(ended(client, batch).output_file_id).text.splitlines()]
        bodies = {row["custom_id"]: row["response"]["body"] for row in rows}
    for number, name in enumerate((None, "first", "second")):
        assert bodies[f"row-{number}"]["choices"][0]["text"] == wanted[name][0]
        assert bodies[f"row-{number}"]["model"] == (name or MODEL)


def test_adapters_are_loaded_and_unloaded(http, client, wanted):
    asked = {"lora_name": "new", "lora_path": "third"}
    found = http.post("/v1/load_lora_adapter", json=asked)
    assert found.status_code == 200 and found.text == "Success: LoRA adapter 'new' added successfully."
    assert client.completions.create(model="new", prompt=PROMPT, **SAYS).choices[0].text == wanted["third"][0]
    assert http.post("/v1/load_lora_adapter", json=asked).status_code == 409
    replaced = {**asked, "lora_path": "first", "load_inplace": True}
    assert http.post("/v1/load_lora_adapter", json=replaced).status_code == 200
    assert client.completions.create(model="new", prompt=PROMPT, **SAYS).choices[0].text == wanted["first"][0]
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "new"}).status_code == 200
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "new"}).status_code == 404
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="new", prompt=PROMPT)


@pytest.mark.parametrize(
    ("name", "path", "status", "said"),
    [
        ("x", "../first", 404, "is not in the server's folder"),
        ("x", "/etc", 404, "is not in the server's folder"),
        ("x", ".", 404, "is not in the server's folder"),
        ("x", "nothing", 404, "is not in the server's folder"),
        ("x", "a\x00b", 404, "is not in the server's folder"),
        ("x", "foreign", 400, "does not fit this llama model"),
        (MODEL, "third", 409, "is the name of the model itself"),
        (f"{MODEL}:latest", "third", 409, "is the name of the model itself"),
        (MODEL.upper(), "third", 409, "is the name of the model itself"),
    ],
)
def test_what_is_refused(name, path, status, said, http, folder):
    found = http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": path})
    assert found.status_code == status and said in found.json()["error"]["message"]
    assert str(folder) not in found.text
    assert [each["id"] for each in http.get("/v1/models").json()["data"]][:3] == [MODEL, "first", "second"]


def test_a_link_out_of_the_folder_is_refused(http, folder, tmp_path):
    save_adapter("llama", tmp_path / "outside")
    (folder / "link").symlink_to(tmp_path / "outside")
    assert http.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "link"}).status_code == 404


def test_without_a_folder_nothing_is_loaded(chat_model, folder):
    with served(chat_model) as server, httpx2.Client(base_url=server.url, trust_env=False) as http:
        for path in ("load", "unload"):
            body = {"lora_name": "x", "lora_path": str(folder / "first")}
            body = body if path == "load" else {"lora_name": "x"}
            found = http.post(f"/v1/{path}_lora_adapter", json=body)
            assert found.status_code == 403 and "--lora-folder" in found.json()["error"]["message"]


@pytest.mark.parametrize("name", [MODEL, f"{MODEL}:latest", MODEL.upper()])
def test_an_adapter_with_the_name_of_the_model_is_refused(name, chat_model, folder):
    modules = f"{name}={folder / 'first'}"
    with pytest.raises(ConfigError, match="another name than"), served(chat_model, {"lora_modules": modules}):
        pass


def test_one_adapter_for_every_text(chat_model, folder, wanted):
    """It cannot be unloaded, and the fingerprint tells it."""
    with (
        served(chat_model, {"adapter": str(folder / "first")}, lora_folder=folder) as server,
        httpx2.Client(base_url=server.url, trust_env=False) as http,
    ):
        asked = {"prompt": PROMPT, **SAYS}
        done, named = (http.post("/v1/completions", json={"model": each, **asked}).json() for each in (MODEL, "first"))
        assert done["choices"][0]["text"] == named["choices"][0]["text"] == wanted["first"][0]
        assert done["system_fingerprint"] == named["system_fingerprint"] and "_" in done["system_fingerprint"][3:]
        found = http.post("/v1/unload_lora_adapter", json={"lora_name": "first"})
        assert found.status_code == 409 and "every text" in found.json()["error"]["message"]
        body = {"lora_name": "first", "lora_path": "second", "load_inplace": True}
        assert http.post("/v1/load_lora_adapter", json=body).status_code == 400
        assert http.post("/v1/completions", json={"model": MODEL, **asked}).json()["choices"] == done["choices"]
