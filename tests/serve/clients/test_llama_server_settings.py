"""A server's settings as llama.cpp's tests of its own server check them: each test here starts servers of its own.

They were read in tools/server/tests/unit of the llama.cpp that llama-cpp-python 0.3.36 carries. Which of them a test
here stands for, by file:

test_completion.py
 - consistent_result_same_seed, different_result_different_seed, consistent_result_different_batch_size:
   test_a_seed_decides_and_nothing_else
 - cache_vs_nocache_prompt (skipped there, since it fails): test_the_cache_changes_no_text
 - completion_parallel_slots: test_texts_beside_others
 - completion_unified: test_requests_that_do_not_fit_together
 - cancel_request: test_a_client_that_leaves_gives_its_place_back
 - completion_prompt_cache: test_prompts_in_and_out_of_the_cache
test_tokenize.py (tokenize_with_bos): test_the_token_that_begins_a_text
test_basic.py (server_start_simple, server_models, no_ui) and test_security.py (access_public_endpoint,
 access_static_assets_without_api_key, incorrect_api_key, correct_api_key, correct_api_key_anthropic_header,
 openai_library_correct_api_key, cors_options): test_who_may_come_in
test_ignore_eos.py: test_the_end_of_a_text_is_ignored
test_slot_save.py (slot_save_restore, slot_erase): test_a_text_that_is_saved_restored_and_erased
test_speculative.py (with_and_without_draft, different_draft_min_draft_max, slot_ctx_not_exceeded,
 multi_requests_parallel): test_drafts_change_no_text
test_metrics.py (metrics_prometheus_format, metrics_prompt_processed_and_cached,
 metrics_predicted_total_matches_requests): test_figures_are_those_of_the_answers
"""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import openai
import pytest
import tokenizers

from tests.empty import check_empty
from tests.serve.clients.conftest import tokens_of
from tests.serve.conftest import hold, served
from tests.serve.loop.test_metrics import samples
from tests.serve.openai.test_chat import MESSAGES
from tests.serve.request.test_fields import post

pytestmark = pytest.mark.clients

COMPLETION = "/v1/completions"
LONG = " ".join(f"w{number}" for number in range(40))


def client_of(server, **settings):
    return httpx2.Client(base_url=server.url, timeout=120, trust_env=False, **settings)


@pytest.mark.parametrize(("num_slots", "step"), [(1, 512), (2, 512), (2, 16), (2, 32)])
def test_a_seed_decides_and_nothing_else(chat_model, quiet, num_slots, step):
    with served(chat_model, {"max_sequences": num_slots, "max_step_tokens": step}) as server, client_of(server) as http:
        for temperature in (0, 1):
            wanted = quiet.generate(LONG, max_new_tokens=8, temperature=temperature, seed=42).text
            for _ in range(4):
                done = post(http, prompt=LONG, temperature=temperature, seed=42)
                assert done["choices"][0]["text"] == wanted
        assert len({post(http, prompt=LONG, temperature=1, seed=seed)["choices"][0]["text"] for seed in range(4)}) == 4


def test_the_cache_changes_no_text(chat_model, http):
    with served(chat_model, {"prefix_cache": False}) as server, client_of(server) as cold:
        asked = {"prompt": LONG, "temperature": 1, "seed": 42, "max_tokens": 20}
        texts, cached = set(), []
        for where in (cold, cold, http, http):
            done = post(where, **asked)
            texts.add(done["choices"][0]["text"])
            cached.append(done["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert len(texts) == 1 and cached[:2] == [0, 0] and cached[3] > 0


@pytest.mark.parametrize(("num_slots", "num_requests"), [(1, 3), (2, 2), (2, 4), (4, 2), (4, 6)])
def test_texts_beside_others(chat_model, quiet, num_slots, num_requests):
    prompts = [f"w{number} w7 w{number + 9}" for number in range(num_requests)]
    with served(chat_model, {"max_sequences": num_slots}) as server, client_of(server) as http:
        ask = lambda prompt: post(http, prompt=prompt, seed=42, temperature=1, max_tokens=40)  # noqa: E731
        with ThreadPoolExecutor(num_requests) as pool:
            texts = [done["choices"][0]["text"] for done in pool.map(ask, prompts)]
    assert texts == [quiet.generate(prompt, max_new_tokens=40, seed=42, temperature=1).text for prompt in prompts]


@pytest.mark.parametrize("lengths", [[80, 40, 80, 80], [70, 70, 70, 70], [90, 90, 40, 90]], ids=str)
def test_requests_that_do_not_fit_together(chat_model, quiet, lengths):
    """There some of them fail; here they wait for each other's blocks."""
    wanted = quiet.generate("w5", max_new_tokens=max(lengths)).tokens
    with served(chat_model, {"cache_tokens": 160}) as server, client_of(server) as http:
        ask = lambda num_new: post(http, prompt="w5", max_tokens=num_new, return_token_ids=True)  # noqa: E731
        with ThreadPoolExecutor(len(lengths)) as pool:
            found = [done["choices"][0]["token_ids"] for done in pool.map(ask, lengths)]
        check_empty(server.driver.core)
    assert found == [list(wanted[:num_new]) for num_new in lengths]


def test_a_client_that_leaves_gives_its_place_back(chat_model, quiet):
    with served(chat_model, {"max_sequences": 1}, max_queued=0) as server, client_of(server) as http:
        step = server.driver.core.loop.step
        hold(server.driver)
        with pytest.raises(httpx2.TimeoutException):
            http.post(COMPLETION, json={"prompt": "w1", "max_tokens": -1}, timeout=0.5)
        ends_s = time.monotonic() + 60
        while server.admission.num_open or not server.admission._held_s:  # it may come after its client has left
            assert time.monotonic() < ends_s, "the server does not notice that the client has left"
            time.sleep(0.01)
        server.driver.core.loop.step = step
        assert post(http, prompt="w1")["choices"][0]["text"] == quiet.generate("w1", max_new_tokens=8).text
        check_empty(server.driver.core)


def test_prompts_in_and_out_of_the_cache(chat_model, quiet):
    with served(chat_model, {"max_sequences": 2, "cache_tokens": 192}) as server, client_of(server) as http:
        for turn in range(16):
            kind, num_new = turn * 7 % 5, 1 + turn % 8
            prompt, wanted = (
                f"w{kind} w9 " * (30 + kind),
                quiet.generate(f"w{kind} w9 " * (30 + kind), max_new_tokens=8),
            )
            done = post(http, prompt=prompt, max_tokens=num_new, return_token_ids=True)
            usage, cached = done["usage"], done["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2 * (30 + kind), num_new)
            assert cached % 8 == 0 and cached < usage["prompt_tokens"]
            assert done["choices"][0]["token_ids"] == list(wanted.tokens[:num_new])


def test_the_token_that_begins_a_text(chat_model, tmp_path):
    path = Path(shutil.copytree(chat_model, tmp_path / "begun"))
    words = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    first = tokenizers.processors.TemplateProcessing(single="w200 $A", special_tokens=[("w200", 200)])
    words.post_processor = first
    words.save(str(path / "tokenizer.json"))
    with served(path) as server, client_of(server) as http:
        for more, wanted in (({}, [200, 1]), ({"add_special": True}, [200, 1]), ({"add_special": False}, [1])):
            assert tokens_of(http, prompt="w1", **more) == wanted


def test_the_end_of_a_text_is_ignored(chat_model, quiet, tmp_path):
    path = Path(shutil.copytree(chat_model, tmp_path / "ends"))
    wanted = quiet.generate("w1 w2", max_new_tokens=8).tokens
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": wanted[3]}))
    with served(path) as server, client_of(server) as http:
        asked = {"prompt": "w1 w2", "return_token_ids": True}
        (ends,), (goes_on,) = (post(http, **asked, ignore_eos=value)["choices"] for value in (False, True))
    assert (ends["finish_reason"], ends["token_ids"]) == ("stop", list(wanted[: wanted.index(wanted[3]) + 1]))
    assert (goes_on["finish_reason"], goes_on["token_ids"]) == ("length", list(wanted))


def test_a_text_that_is_saved_restored_and_erased(chat_model, tmp_path):
    def cached(http):
        done = post(http, prompt=LONG)
        return done["usage"]["prompt_tokens_details"]["cached_tokens"], done["choices"][0]["text"]

    kept = {"session_dir": tmp_path / "kept"}
    with served(chat_model, **kept) as server, client_of(server) as http:
        _, text = cached(http)
        assert http.post("/v1/sessions/one/save", json={"prompt": LONG}).json()["tokens"] == 40
    with served(chat_model, **kept) as server, client_of(server) as http:
        assert http.post("/v1/sessions/one/restore").json()["tokens"] == 40
        assert cached(http) == (32, text)
        assert http.post("/v1/sessions/one/erase").json()["erased"]
        assert http.post("/v1/sessions/one/restore").status_code == 404
    with served(chat_model, **kept) as server, client_of(server) as http:
        assert cached(http) == (0, text)


@pytest.mark.parametrize("num_drafts", [2, 8, None])
def test_drafts_change_no_text(chat_model, quiet, num_drafts):
    """Drafts of a model, which is the same one, and without a model those of the suffix automaton."""
    prompts = ["w1 w2 w3", "w9 w9 w9 w9", LONG]
    model = {"speculate": "draft_model", "draft_model": chat_model, "num_draft_tokens": num_drafts}
    with served(chat_model, model if num_drafts else {"speculate": "suffix"}) as server, client_of(server) as http:
        ask = lambda prompt: post(http, prompt=prompt, max_tokens=-1)["choices"][0]["text"]  # noqa: E731
        with ThreadPoolExecutor(3) as pool:
            texts = list(pool.map(ask, prompts))
        assert samples(server.url)["tokenmill:spec_decode_num_draft_tokens_total"] > 0
    assert texts == [quiet.generate(prompt, max_new_tokens=-1).text for prompt in prompts]


def test_figures_are_those_of_the_answers(chat_model):
    with served(chat_model) as server, client_of(server) as http:
        answers = [post(http, prompt=LONG, max_tokens=num_new)["usage"] for num_new in (1, 4, 16)]
        found = {name.removeprefix("tokenmill:"): value for name, value in samples(server.url).items()}
        text = http.get("/metrics").text
    assert found["prompt_tokens_total"] == sum(usage["prompt_tokens"] for usage in answers)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in answers)
    assert found["prefix_cache_hits_total"] == cached > 0
    assert found["generation_tokens_total"] == 21 and found["num_requests_running"] == 0
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert families and all(f"# HELP {name} " in text for name in families)


def test_who_may_come_in(chat_model):
    with served(chat_model, keys=("one-key",)) as server, client_of(server) as http:
        page = http.get("/", headers={"Accept": "text/html"}).text
        assert http.get("/health").json() == {"status": "ok"} and page.startswith("<!doctype html>")
        body = {"prompt": "w1", "max_tokens": 1}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}):
            response = http.post(COMPLETION, json=body, headers=headers)
            assert response.status_code == 401 and response.json()["error"]["type"] == "authentication_error"
        for headers in ({"Authorization": "Bearer one-key"}, {"X-Api-Key": "one-key"}):
            assert http.post(COMPLETION, json=body, headers=headers).status_code == 200
        preflight = {"Origin": "http://web.example", "Access-Control-Request-Method": "POST"}
        for headers in (preflight, preflight | {"Authorization": "Bearer one-key"}):
            response = http.options(COMPLETION, headers=headers)
            assert response.status_code in (401, 405)
            assert not [name for name in response.headers if name.startswith("access-control")]
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="one-key") as client:
            assert [model.id for model in client.models.list()] == ["words"]
            assert len(client.chat.completions.create(model="words", messages=MESSAGES, max_tokens=1).choices) == 1
