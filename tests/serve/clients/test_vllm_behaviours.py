"""Answers as vLLM's tests of its OpenAI server check them, on the routes that this server has.

They were read in vLLM's repository. Which of them a test here stands for, by file below tests/entrypoints, and the
commit at which that was read:

openai/completion/test_completion.py (10efe9463b)
 - single_completion, batch_completions: test_prompts_as_text_and_as_ids
 - completion_truncation_side_controls_prompt_truncation, and openai/test_truncation.py (0794945f83):
   test_which_end_of_a_prompt_is_cut
 - no_logprobs, zero_logprobs, some_logprobs: test_log_probabilities
 - prompt_logprobs_completion: test_log_probabilities_of_the_prompt
 - echo_logprob_completion: test_the_prompt_is_given_back
 - completion_streaming, parallel_no_streaming, parallel_streaming: test_several_texts
 - completion_stream_options: test_usage_in_a_stream
openai/completion/test_completion_error.py (03d1e1ee1f: completion_error_stream): test_an_error_ends_a_stream
openai/completion/test_completion_text_offset.py (c3b0b51641): test_offsets_where_a_stop_text_holds_back
openai/completion/test_completion_logprobs.py (9fb12f26cc): test_log_probabilities
openai/chat_completion/test_chat.py (03f5298e5c)
 - no_logprobs_chat, zero_logprobs_chat, some_logprobs_chat: test_log_probabilities
 - prompt_logprobs_chat, more_than_one_prompt_logprobs_chat: test_log_probabilities_of_the_prompt
 - single_chat_session, chat_streaming, extra_fields_allowed, complex_message_content, custom_role,
   response_format_text: test_an_answer
 - chat_completion_stream_options, and test_usage_policy.py (07807420b2): test_usage_in_a_stream
 - chat_completion_n_*: test_several_texts
openai/chat_completion/test_chat_error.py (0a1478aacc: system_message_accepts_text and _array): test_an_answer
openai/chat_completion/test_chat_echo.py (41c5903d04: without echo), test_token_in_token_out.py (49d9f165f6):
 test_an_open_last_message_is_continued of tests/serve/request/test_fields.py
openai/chat_completion/test_chat_logit_bias_validation.py (0c292380d4), test_chat_stop_token_ids_validation.py
 (37fa82dee5), what is valid: test_the_last_id_is_valid
openai/chat_completion/test_cache_accounting.py (27b4dd01b2): test_what_the_cache_saved
openai/basic/test_return_token_ids.py (06cb65b596): test_ids_of_prompts_and_texts
openai/models/test_models.py (76a76927d5): test_models of tests/serve/openai/test_client.py
serve/tokenize/test_tokenization.py (41c5903d04): the last three tests

What is refused is in test_vllm_refusals.py, what needs a server with settings of its own in test_vllm_settings.py.
docs/serving.md lists what differs by design.
"""

import json

import pytest
import transformers

from tests.serve.clients.conftest import stream_of, tokens_of
from tests.serve.conftest import MODEL
from tests.serve.openai.test_chat import MESSAGES
from tests.serve.request.test_fields import post, refusal

pytestmark = pytest.mark.clients

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ASK = {CHAT: {"messages": MESSAGES}, COMPLETION: {"prompt": "w1 w2 w3"}}
LAST_ID = 210
TALK = [
    {"role": "user", "content": "Good morning!"},
    {"role": "assistant", "content": "How can I help?"},
    {"role": "user", "content": "Tell me about 🐱 and the tests of 2026."},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
routes = pytest.mark.parametrize("path", [CHAT, COMPLETION])


def text_of(choice):
    return choice["text"] if "text" in choice else choice["message"]["content"]


def joined(chunks):
    """The text of each continuation, and how each ended."""
    texts, reasons = {}, {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        index, piece = choice["index"], choice["text"] if "text" in choice else choice["delta"].get("content", "")
        texts[index] = texts.get(index, "") + piece
        if choice["finish_reason"]:
            assert index not in reasons
            reasons[index] = choice["finish_reason"]
    return [texts[index] for index in sorted(texts)], reasons


@pytest.mark.parametrize(("prompt", "count"), [("w1 w2 w3", 1), ([0] * 5, 1), (["w1 w2"] * 2, 2), ([[0] * 5] * 2, 2)])
def test_prompts_as_text_and_as_ids(http, prompt, count):
    done = post(http, prompt=prompt, max_tokens=5)
    texts, usage = [choice["text"] for choice in done["choices"]], done["usage"]
    assert len(texts) == count and len(set(texts)) == 1 and all("prompt_logprobs" not in c for c in done["choices"])
    assert {choice["finish_reason"] for choice in done["choices"]} == {"length"}
    assert usage["completion_tokens"] == 5 * count and usage["prompt_tokens"] in (3, 4, 5, 10)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert joined(stream_of(http, prompt=prompt, max_tokens=5))[0] == texts


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({"truncate_prompt_tokens": 4, "truncation_side": "right"}, slice(4)),
        ({"truncate_prompt_tokens": 4, "truncation_side": "left"}, slice(-4, None)),
        ({"truncate_prompt_tokens": 4}, slice(-4, None)),
        ({"truncate_prompt_tokens": -1}, slice(-95, None)),  # one more token fits
        ({"truncate_prompt_tokens": -1, "truncation_side": "right"}, slice(95)),
    ],
    ids=str,
)
def test_which_end_of_a_prompt_is_cut(http, more, kept):
    prompt = list(range(120))
    done = post(http, prompt=prompt, max_tokens=1, return_token_ids=True, **more)
    assert done["choices"][0]["prompt_token_ids"] == prompt[kept]
    assert refusal(http, prompt=prompt, truncate_prompt_tokens=97)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("num_top", [None, 0, 1, 5])
def test_log_probabilities(http, quiet, num_top):
    done = post(http, prompt="w1 w2", max_tokens=5, logprobs=num_top, temperature=1, seed=3, return_token_ids=True)
    (choice,) = done["choices"]
    asked = {"logprobs": num_top is not None} | ({"top_logprobs": num_top} if num_top else {})
    (answer,) = post(http, CHAT, messages=MESSAGES, max_tokens=5, **asked)["choices"]
    if num_top is None:
        assert choice["logprobs"] is None and answer["logprobs"] is None
        return
    logprobs_TV = quiet.logits([1, 2, *choice["token_ids"]]).log_softmax(-1)[1:-1]
    for row_V, token, top in zip(logprobs_TV, choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True):
        likeliest = row_V.topk(num_top).indices.tolist()
        assert top == pytest.approx({f"w{each}": float(row_V[each]) for each in {token, *likeliest}}, abs=1e-4)
    assert [len(entry["top_logprobs"]) for entry in answer["logprobs"]["content"]] == [num_top] * 5


@pytest.mark.parametrize("num_top", [None, 0, 1, 2])
@routes
def test_log_probabilities_of_the_prompt(http, path, num_top):
    done = post(http, path, **ASK[path], prompt_logprobs=num_top)
    found = (done if path == CHAT else done["choices"][0]).get("prompt_logprobs")
    if num_top is None:
        assert found is None
        return
    assert found[0] is None and len(found) == done["usage"]["prompt_tokens"]
    assert all(max(num_top, 1) <= len(entry) <= num_top + 1 for entry in found[1:])


@pytest.mark.parametrize("num_top", [0, 1])
@pytest.mark.parametrize("prompt", ["w1 w2 w3 w4 w5", [1, 2, 3, 4, 5]], ids=["text", "ids"])
def test_the_prompt_is_given_back(http, prompt, num_top):
    (choice,) = post(http, prompt=prompt, echo=True, logprobs=num_top, max_tokens=5)["choices"]
    assert choice["text"].startswith("w1 w2 w3 w4 w5")
    logprobs = choice["logprobs"]
    assert {len(entries) for entries in logprobs.values()} == {10}
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True):
        assert token in top and max(num_top, 1) <= len(top) <= num_top + 1


@pytest.mark.parametrize("count", [1, 3])
@routes
def test_several_texts(http, path, count):
    """Their ends are at different places, which ids that stop make sure of."""
    asked = ASK[path] | {"n": count, "temperature": 1, "seed": 42, "max_tokens": 50, "stop_token_ids": [*range(40)]}
    choices = post(http, path, **asked, return_token_ids=True)["choices"]
    texts = list(map(text_of, choices))
    assert [choice["index"] for choice in choices] == list(range(count)) and len(set(texts)) == count
    assert count == 1 or len({len(choice["token_ids"]) for choice in choices}) > 1
    streamed, reasons = joined(stream_of(http, path, **asked))
    assert streamed == texts and reasons == {choice["index"]: choice["finish_reason"] for choice in choices}


@pytest.mark.parametrize("continuous", [None, False, True])
@pytest.mark.parametrize("include", [None, False, True])
@routes
def test_usage_in_a_stream(http, path, include, continuous):
    options = {"include_usage": include, "continuous_usage_stats": continuous}
    chunks = stream_of(http, path, **ASK[path], min_tokens=8, stream_options=options)
    wanted = post(http, path, **ASK[path])["usage"]
    if not include:
        assert not any("usage" in chunk for chunk in chunks)
        return
    *before, last = chunks
    assert last["choices"] == [] and last["usage"]["total_tokens"] == wanted["total_tokens"]
    if not continuous:
        assert {chunk["usage"] for chunk in before} == {None}
        return
    counts = [chunk["usage"]["completion_tokens"] for chunk in before]
    assert counts == sorted(counts) and counts[-1] == wanted["completion_tokens"] == 8
    for usage in (chunk["usage"] for chunk in before):
        assert usage["prompt_tokens"] == wanted["prompt_tokens"] == usage["total_tokens"] - usage["completion_tokens"]


def test_offsets_where_a_stop_text_holds_back(real):
    asked = {"prompt": "In the morning the", "max_tokens": 12, "logprobs": 0, "stop": ["\n\n\n", " no such text"]}
    (whole,) = post(real, **asked)["choices"]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in stream_of(real, **asked)]
    offsets = whole["logprobs"]["text_offset"]
    assert [offset for chunk in chunks for offset in chunk["text_offset"]] == offsets
    ends = [*offsets[1:], len(whole["text"])]
    assert [whole["text"][start:end] for start, end in zip(offsets, ends, strict=True)] == whole["logprobs"]["tokens"]


def test_an_error_ends_a_stream(http):
    body = {"prompt": "w1", "stream": True, "timeout": 1e-6}
    with http.stream("POST", COMPLETION, json=body) as response:
        last = [line for line in response.iter_lines() if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"


def test_an_answer(http, quiet):
    wanted = quiet.chat(MESSAGES, max_new_tokens=8).text
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in MESSAGES]
    for messages in (MESSAGES, parts, [*MESSAGES[:1], MESSAGES[1] | {"extra_field": "0"}]):
        done = post(http, CHAT, messages=messages, response_format={"type": "text"})
        (choice,), usage = done["choices"], done["usage"]
        assert choice["message"] == {"role": "assistant", "content": wanted, "refusal": None}
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 8, 15)
    assert joined(stream_of(http, CHAT, messages=MESSAGES)) == ([wanted], {0: "length"})
    for content in ("w3", [{"type": "text", "text": "w3"}]):
        done = post(http, CHAT, messages=[{"role": "w9", "content": content}])
        assert text_of(done["choices"][0]) == quiet.generate("w9 w3 assistant", max_new_tokens=8).text


@routes
def test_the_last_id_is_valid(http, path):
    assert post(http, path, **ASK[path], logit_bias={str(LAST_ID): 1.0}, stop_token_ids=[LAST_ID])["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_cache_saved(http, stream):
    messages = [{"role": "user", "content": " ".join(f"w{number}" for number in range(100, 140 + 10 * stream))}]

    def usage():
        if not stream:
            return post(http, CHAT, messages=messages)["usage"]
        return stream_of(http, CHAT, messages=messages, stream_options={"include_usage": True})[-1]["usage"]

    first, second = (usage()["prompt_tokens_details"]["cached_tokens"] for _ in range(2))
    assert first < second and second >= 40


@routes
def test_ids_of_prompts_and_texts(real, path):
    """Ids of a stream are those of the whole answer; those of the prompt are in the first chunk alone."""
    asked = {"messages": TALK} if path == CHAT else {"prompt": "I love code 🚀"}
    done = post(real, path, **asked, return_token_ids=True)
    (choice,) = done["choices"]
    prompt = (done if path == CHAT else choice)["prompt_token_ids"]
    assert prompt == tokens_of(real, **asked)
    decoded = real.post("/detokenize", json={"tokens": choice["token_ids"]}).json()["prompt"]
    assert decoded.rstrip("\ufffd") == text_of(choice)  # a character that the limit has cut is left out
    first, *others = stream_of(real, path, **asked, return_token_ids=True)
    assert (first if path == CHAT else first["choices"][0])["prompt_token_ids"] == prompt
    pieces = [piece for chunk in (first, *others) for piece in chunk["choices"]]
    assert [token for piece in pieces for token in piece.get("token_ids", ())] == choice["token_ids"]
    assert "prompt_token_ids" not in json.dumps(others)
    for answer in (post(real, path, **asked), *stream_of(real, path, **asked, return_token_ids=False)):
        assert "token_ids" not in json.dumps(answer)


@pytest.fixture(scope="module")
def theirs(real_model):
    """transformers' tokenizer of the real model."""
    return transformers.AutoTokenizer.from_pretrained(real_model.parent, gguf_file=real_model.name)


def test_tokens_are_those_of_transformers(real, theirs):
    for text in ("vllm1 This is a test prompt.", "Zoë said 媽媽 🤗\n\n  twice"):
        for special in (False, True):
            found = real.post("/tokenize", json={"prompt": text, "add_special_tokens": special, "model": MODEL}).json()
            assert found["tokens"] == theirs.encode(text, add_special_tokens=special)
            assert (found["count"], found["max_model_len"]) == (len(found["tokens"]), 512)
            assert "".join(found["token_strs"]) == text or not text.isascii()
        assert real.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}
    plain = real.post("/tokenize", json={"prompt": "a b", "return_token_strs": False}).json()
    assert plain["token_strs"] is None


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
@pytest.mark.parametrize(("begins", "continues"), [(False, False), (True, False), (False, True)])
def test_tokens_of_a_conversation_are_those_of_transformers(real, theirs, tools, begins, continues):
    messages = [*TALK, {"role": "assistant", "content": "Sure,"}] if continues else TALK
    flags = {"add_generation_prompt": begins, "continue_final_message": continues}
    found = real.post("/tokenize", json={"messages": messages, "tools": tools, **flags}).json()
    if tools:  # the model's template shows none, so the server tells of them in the system message
        system = theirs.decode(found["tokens"]).split("<|im_start|>system\n")[1].partition("<|im_end|>")[0]
        assert json.dumps(tools[0]) in system
        messages = [{"role": "system", "content": system}, *messages]
    text = theirs.apply_chat_template(messages, tokenize=False, **flags)
    assert found["tokens"] == theirs.encode(text, add_special_tokens=False)


def test_tokenizer_info(real, theirs):
    info = real.get("/tokenizer_info").json()
    kinds = {"tokenizer_class": str, "chat_template": str, "model_max_length": int, "added_tokens_decoder": dict}
    kinds |= dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), str)
    assert not [name for name, kind in kinds.items() if name in info and not isinstance(info[name], kind)]
    assert info["tokenizer_class"] and info["chat_template"] == theirs.chat_template
    assert info["model_max_length"] >= real.post("/tokenize", json={"prompt": "a"}).json()["max_model_len"]
