"""llama.cpp's /completion, as Continue, SillyTavern and llama.cpp's own documents ask, and the routes that front ends
ask first. The forms of answers are those of llama.cpp's tools/server/server-task.cpp.
"""

import json
import math
import time

import httpx2
import pytest

from tests.byte_model import save_infill_model
from tests.empty import check_empty
from tests.serve.conftest import served
from tokenmill import load

SETTINGS = {"max_length": 256, "max_sequences": 4, "block_size": 8, "dtype": "float32"}
PROMPT = "def f(x):\n    "
PRE, SUF, MID = 257, 258, 259
GREEDY = {"temperature": 0, "n_predict": 12}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save_infill_model(tmp_path_factory.mktemp("coder"))


@pytest.fixture(scope="module")
def server(path):
    with served(path, SETTINGS, name="coder") as server:
        yield server


@pytest.fixture(scope="module")
def quiet(path):
    with load(path, **SETTINGS, speculate="off") as quiet:
        yield quiet


@pytest.fixture(scope="module")
def wanted(quiet):
    return quiet.generate([*PROMPT.encode()], max_new_tokens=12)


def asked(http, body):
    found = http.post("/completion", json=body)
    assert found.status_code == 200, found.text
    return found.json()


def events_of(http, body):
    with http.stream("POST", "/completion", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_the_answer(server, http, wanted):
    found = asked(http, {"prompt": PROMPT, **GREEDY})
    assert found["content"] == wanted.text and found["prompt"] == PROMPT and found["model"] == "coder"
    assert (found["tokens_predicted"], found["tokens_evaluated"], found["tokens_cached"]) == (12, 14, 26)
    assert (found["stop"], found["stop_type"], found["stopping_word"], found["index"]) == (True, "limit", "", 0)
    assert found["tokens"] == [] and "completion_probabilities" not in found and "warnings" not in found
    assert found["timings"]["predicted_n"] == 12 and found["generation_settings"]["n_predict"] == 12
    check_empty(server.driver.core)


def test_without_a_limit_it_is_as_long_as_fits(http):
    found = asked(http, {"prompt": PROMPT, "temperature": 0, "ignore_eos": True})
    assert found["tokens_predicted"] == 256 - len(PROMPT) and found["stop_type"] == "limit"


def test_no_new_tokens(http):
    """By which front ends have a prompt computed before they need it."""
    found = asked(http, {"prompt": PROMPT, "n_predict": 0})
    assert (found["content"], found["tokens_predicted"]) == ("", 0)


@pytest.mark.parametrize(
    "prompt",
    [
        [*PROMPT.encode()],
        [*PROMPT[:4].encode(), PROMPT[4:]],
        [PROMPT[:4], *PROMPT[4:].encode()],
        {"prompt_string": PROMPT},
        [PROMPT],
    ],
)
def test_forms_of_a_prompt(prompt, http, wanted):
    assert asked(http, {"prompt": prompt, **GREEDY})["content"] == wanted.text


def test_several_prompts(http, wanted):
    found = asked(http, {"prompt": ["x = ", PROMPT, [*b"y = "]], **GREEDY})
    assert [each["index"] for each in found] == [0, 1, 2] and found[1]["content"] == wanted.text
    assert [each["prompt"] for each in found] == ["x = ", PROMPT, "y = "]
    assert [each["tokens_evaluated"] for each in found] == [4, 14, 4]


def test_tokens_and_probabilities(http, quiet):
    wanted = quiet.generate([*PROMPT.encode()], max_new_tokens=12, logprobs=3)
    body = {"prompt": PROMPT, "n_probs": 3, "return_tokens": True, **GREEDY}
    found = asked(http, body)
    assert found["tokens"] == list(wanted.tokens)
    told = found["completion_probabilities"]
    assert [each["id"] for each in told] == list(wanted.tokens)
    for each, entry in zip(told, wanted.logprobs, strict=True):
        assert each["logprob"] == pytest.approx(entry.logprob, abs=1e-5)
        assert [top["id"] for top in each["top_logprobs"]] == [token for token, _ in entry.top]
        assert {"id", "token", "bytes", "logprob"} == set(each["top_logprobs"][0])
    streamed = events_of(http, body)
    assert [one for each in streamed for one in each.get("completion_probabilities", ())] == told
    assert [token for each in streamed for token in each["tokens"]] == list(wanted.tokens)


def test_probabilities_and_tokens_of_a_text_that_ends_by_its_lines(http):
    """And of characters that come in several tokens: a stream tells what the whole answer tells."""
    body = {"prompt": PROMPT, "n_predict": 60, "temperature": 0.9, "ignore_eos": True, "n_probs": 1, "seed": 5}
    body |= {"n_indent": 2, "logit_bias": [[10, 3.0], [32, 3.0]], "return_tokens": True}
    for more in ({}, {"n_probs": 0}, {"n_indent": 0, "n_probs": 0}, {"n_predict": 0}):
        whole, events = asked(http, body | more), events_of(http, body | more)
        told = [one for each in events for one in each.get("completion_probabilities", ())]
        assert told == whole.get("completion_probabilities", [])
        assert [token for each in events for token in each["tokens"]] == whole["tokens"]
        assert "".join(each["content"] for each in events) == whole["content"]


def test_a_stream(http, wanted):
    found = events_of(http, {"prompt": PROMPT, "timings_per_token": True, **GREEDY})
    assert "".join(each["content"] for each in found) == wanted.text
    assert [each["stop"] for each in found] == [False] * (len(found) - 1) + [True]
    assert all("timings" in each for each in found)
    assert [each["tokens_predicted"] for each in found] == sorted(each["tokens_predicted"] for each in found)


def test_a_client_that_leaves(server, http, wanted):
    body = {"prompt": PROMPT, "temperature": 0, "ignore_eos": True, "stream": True, "n_cmpl": 2}
    with http.stream("POST", "/completion", json=body) as answer:
        next(answer.iter_lines())
    ends_s = time.monotonic() + 20
    while server.admission.num_open:
        assert time.monotonic() < ends_s, "the request still runs"
        time.sleep(0.01)
    assert asked(http, {"prompt": PROMPT, **GREEDY})["content"] == wanted.text
    check_empty(server.driver.core)


def test_fields_of_the_answer(http, wanted):
    fields = ["content", "generation_settings/n_predict", "timings/prompt_n", "absent/field"]
    found = asked(http, {"prompt": PROMPT, "response_fields": fields, "cache_prompt": False, **GREEDY})
    assert found.keys() == {"content", "n_predict", "prompt_n"} and found["content"] == wanted.text


def test_defaults_are_llama_cpps(http):
    settings = asked(http, {"prompt": PROMPT, "n_predict": 2})["generation_settings"]
    assert (settings["temperature"], settings["top_k"], settings["top_p"]) == (0.8, 40, 0.95)
    assert settings["min_p"] == 0.05
    props = http.get("/props").json()
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["default_generation_settings"]["n_ctx"] == 256 and props["total_slots"] == 4
    assert props["model_alias"] == "coder" and props["modalities"] == {"vision": False, "audio": False}


def test_samplers_that_are_not_listed_are_left_out(http):
    body = {"prompt": PROMPT, "n_predict": 2, "samplers": ["top_k", "min_p"], "top_k": 7, "top_p": 0.1}
    settings = asked(http, body)["generation_settings"]
    assert (settings["temperature"], settings["top_k"], settings["top_p"]) == (1.0, 7, 1.0)


@pytest.mark.parametrize(
    "bias", [[[97, 100]], [["a", 100.0]], {"97": 100}, {"a": 100}, [["a", 100], ["b", False], [99, False]]]
)
def test_biases(bias, http):
    assert asked(http, {"prompt": PROMPT, "logit_bias": bias, **GREEDY})["content"] == "a" * 12


def test_a_token_that_is_forbidden(http, wanted):
    first = wanted.tokens[0]
    found = asked(http, {"prompt": PROMPT, "logit_bias": [[first, False]], "return_tokens": True, **GREEDY})
    assert first not in found["tokens"]


def test_a_schema_and_a_grammar(http):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    found = asked(http, {"prompt": PROMPT, "json_schema": schema, "temperature": 0, "n_predict": 60, "grammar": ""})
    assert isinstance(json.loads(found["content"])["a"], int) if found["stop_type"] == "eos" else found["content"]
    assert asked(http, {"prompt": PROMPT, "grammar": 'root ::= "yes"', **GREEDY})["content"] == "yes"


def test_a_stop_text(http, wanted):
    word = wanted.text[3:5]
    found = asked(http, {"prompt": PROMPT, "stop": [word, ""], **GREEDY})
    assert found["content"] == wanted.text[: wanted.text.index(word)]
    assert (found["stop_type"], found["stopping_word"]) == ("word", word)


def test_as_continue_asks(http, wanted):
    """continuedev/continue, core/llm/llms/LlamaCpp.ts and core/autocomplete/templating: the editor writes the marks."""
    marks = "<|fim_prefix|>a = <|fim_suffix|>\nb = 2\n<|fim_middle|>"
    body = {
        "model": "coder",
        "prompt": marks,
        "n_predict": 12,
        "frequency_penalty": None,
        "stop": ["<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "/src/", "#- coding: utf-8"],
        "temperature": 0.01,
    }
    events = events_of(http, body)
    infill = {"input_prefix": "a = ", "input_suffix": "\nb = 2\n", "n_predict": 12}
    assert "".join(each["content"] for each in events) == http.post("/infill", json=infill).json()["content"]
    assert events[-1]["tokens_evaluated"] == len("a = ") + len("\nb = 2\n") + 3


def silly_tavern(**more):
    """SillyTavern's body for llama.cpp, public/scripts/textgen-settings.js: names of several servers at once."""
    return {
        "prompt": PROMPT,
        "model": "coder",
        "max_new_tokens": 12,
        "max_tokens": 12,
        "n_predict": 12,
        "num_predict": 12,
        "num_ctx": 8192,
        "temperature": 0,
        "top_p": 1,
        "typical_p": 1,
        "typical": 1,
        "sampler_seed": 7,
        "seed": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "repeat_penalty": 1.1,
        "rep_pen": 1.1,
        "rep_pen_range": 0,
        "repeat_last_n": 0,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "top_k": 40,
        "skew": 0,
        "min_tokens": 0,
        "add_bos_token": True,
        "ban_eos_token": False,
        "ignore_eos": False,
        "skip_special_tokens": True,
        "include_reasoning": True,
        "top_a": 0,
        "tfs": 1,
        "tfs_z": 1,
        "mirostat": 0,
        "mirostat_mode": 0,
        "mirostat_tau": 5,
        "mirostat_eta": 0.1,
        "dynatemp_range": 0,
        "xtc_threshold": 0.1,
        "xtc_probability": 0,
        "nsigma": 0,
        "top_n_sigma": 0,
        "min_keep": 0,
        "dry_multiplier": 0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 0,
        "dry_sequence_breakers": ["\n", ":", '"', "*"],
        "adaptive_target": -0.01,
        "adaptive_decay": 0.9,
        "stop": ["\nUser:"],
        "stopping_strings": ["\nUser:"],
        "truncation_length": 8192,
        "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
        "logit_bias": [],
        "grammar": "",
        "cache_prompt": True,
        "n_probs": 10,
        "slot_id": -1,
        "api_type": "llamacpp",
        "api_server": "http://127.0.0.1:8000/",
        "stream": False,
    } | more


def test_as_silly_tavern_asks(http, quiet):
    wanted = quiet.generate([*PROMPT.encode()], max_new_tokens=12, repetition_penalty=1.1)
    found = asked(http, silly_tavern())
    assert found["content"] == wanted.text and len(found["completion_probabilities"]) == len(wanted.tokens)
    unknown = {told.split("'")[1] for told in found["warnings"]}
    assert unknown >= {"tfs", "repeat_last_n"} and not unknown & {
        "max_tokens",
        "num_predict",
        "typical_p",
        "mirostat_tau",
    }
    assert "".join(each["content"] for each in events_of(http, silly_tavern())) == wanted.text
    counted = http.post("/tokenize", json={"model": "coder", "content": PROMPT}).json()
    assert counted["tokens"] == [*PROMPT.encode()]


def test_routes_about_tokens(http):
    """As llama.cpp has them: `content`, without special tokens, with pieces."""
    both = http.post("/tokenize", json={"content": "a", "prompt": "b"})  # llama.cpp reads the one, vLLM the other
    assert both.status_code == 400 and "give content or prompt, one of the two" in both.json()["error"]["message"]
    found = http.post("/tokenize", json={"content": "aé<|fim_prefix|>", "with_pieces": True}).json()["tokens"]
    pieces = [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]
    assert found == [*pieces, {"id": PRE, "piece": "<|fim_prefix|>"}]
    assert http.post("/detokenize", json={"tokens": [97, 195, 169]}).json()["content"] == "aé"


def test_the_prompt_of_a_conversation(http):
    messages = [{"role": "user", "content": "Hi there"}]
    found = http.post("/apply-template", json={"messages": messages}).json()["prompt"]
    ids = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert "Hi there" in found and found == http.post("/detokenize", json={"tokens": ids}).json()["content"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [["a", True]]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "multimodal_data"),
        ({"prompt": [999]}, "999"),
        ({"mirostat": 2}, "mirostat = 2"),
        ({"typical_p": 0.9}, "typical_p = 0.9"),
        ({"dynatemp_range": 0.5}, "dynatemp_range"),
        ({"adaptive_target": 0.3}, "adaptive_target"),
        ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"n_predict": -7}, "n_predict = -7"),
        ({"n_probs": 100}, "n_probs"),
        ({"logit_bias": [3]}, "logit_bias"),
        ({"logit_bias": [["a", "x"]]}, "logit_bias"),
        ({"logit_bias": [[None, 2]]}, "logit_bias"),
        ({"logit_bias": [[1.5, 2]]}, "logit_bias"),
        ({"model": "other"}, "not served"),
        ({"n_indent": -1}, "n_indent"),
    ],
)
def test_wrong_bodies(more, said, http):
    found = http.post("/completion", json={"prompt": PROMPT, "n_predict": 4} | more)
    assert found.status_code in (400, 404) and said in found.json()["error"]["message"], found.text


def test_values_that_are_finite(http):
    """JSON has no infinite numbers, and none stands for a token that cannot come."""
    found = asked(http, {"prompt": PROMPT, "n_probs": 5, "logit_bias": [[97, False]], **GREEDY})
    values = [top["logprob"] for each in found["completion_probabilities"] for top in each["top_logprobs"]]
    assert all(math.isfinite(value) for value in values)


def test_minuet(http, quiet):
    """milanglacier/minuet-ai.nvim, lua/minuet/backends/openai_base.lua: for Ollama with a suffix, for llama.cpp with
    the marks in the prompt, at /v1/completions.
    """
    before, after = "a = ", "\nb = 2\n"
    body = {"model": "coder", "stream": True, "max_tokens": 12, "top_p": 0.9, "temperature": 0}
    wanted = quiet.generate([PRE, *before.encode(), SUF, *after.encode(), MID], max_new_tokens=12).text
    marks = f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"
    for more in ({"prompt": before, "suffix": after}, {"prompt": marks}):
        with http.stream("POST", "/v1/completions", json=body | more, headers={"accept": "application/json"}) as answer:
            lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
        assert "".join(json.loads(line)["choices"][0]["text"] for line in lines) == wanted


@pytest.fixture(scope="module")
def http(server):
    with httpx2.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        yield http
