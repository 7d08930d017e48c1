"""Tokens of a sentencepiece model in answers: joined they are the text, and each begins where its offset says."""

import json

import openai
import pytest
import torch
import transformers

from tests.serve.conftest import MODEL, served
from tests.text.test_sentencepiece_file import SETTINGS as KINDS
from tests.text.test_sentencepiece_file import trained_file
from tokenmill.text.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
TEXT = "the quick  brown \U0001f642 fox"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A tiny Llama with such a tokenizer, whose texts begin with <s>."""
    path = tmp_path_factory.mktemp("spm")
    config = transformers.LlamaConfig(
        vocab_size=352, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        transformers.LlamaForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.model").write_bytes(trained_file("bpe", **KINDS["bytes"]))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}
    settings = names | {"add_bos_token": True, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def tokenizer(path):
    return Tokenizer.from_directory(path)


@pytest.fixture(scope="module")
def server(path):
    with served(path) as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def check_places(tokens, offsets, text):
    """Each whole token stands where its offset says. The bytes of a character are shown at its end."""
    assert len(tokens) == len(offsets)
    for token, start in zip(tokens, offsets, strict=True):
        assert "\ufffd" in token or text.startswith(token, start)
    assert offsets == sorted(offsets)


def echoed(client, prompt, **more):
    """Tokens, offsets and text of an echo, of which a stream says the same."""
    ask = {"model": MODEL, "prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0, **more}
    done = client.completions.create(**ask).choices[0]
    if ask.get("max_tokens", 1):
        chunks = [chunk.choices[0] for chunk in client.completions.create(**ask, stream=True)]
        assert [token for chunk in chunks for token in chunk.logprobs.tokens] == done.logprobs.tokens
        assert [start for chunk in chunks for start in chunk.logprobs.text_offset] == done.logprobs.text_offset
        assert "".join(chunk.text for chunk in chunks) == done.text
    return done.logprobs.tokens, done.logprobs.text_offset, done.text


@pytest.mark.parametrize("prompt", ["the quick  brown fox", " the fox", "  fox", "\t\tfox", "fox", "x \u2603\u2603 x"])
@pytest.mark.parametrize("as_ids", [False, True])
def test_the_tokens_of_an_echo_are_its_text(client, tokenizer, prompt, as_ids):
    sent = tokenizer.encode(prompt) if as_ids else prompt
    tokens, offsets, text = echoed(client, sent, max_tokens=0)
    assert text == prompt
    joined = "".join(tokens[1:]).replace("\ufffd" * 3, "\u2603")  # whose bytes are three tokens
    assert (tokens[0], joined) == ("<s>", prompt)  # <s> is no part of the text
    check_places(tokens[1:], offsets[1:], text)


def test_control_tokens_that_a_prompt_spells_have_their_place(client, tokenizer):
    prompt = "the</s> fox</s>"
    tokens, offsets, text = echoed(client, prompt, max_tokens=0)
    assert "".join(tokens[1:]) == text == prompt
    check_places(tokens[1:], offsets[1:], text)
    tokens, offsets, text = echoed(client, prompt, max_tokens=3, extra_body={"skip_special_tokens": False})
    assert text.startswith(prompt)
    check_places(tokens[1:], offsets[1:], text)
    tokens, offsets, text = echoed(
        client, tokenizer.encode(prompt), max_tokens=0, extra_body={"skip_special_tokens": False}
    )
    assert "".join(tokens) == text
    check_places(tokens, offsets, text)


def allow(tokenizer, text):
    """The setting that makes a model say one of the tokens of a text."""
    return {"allowed_token_ids": sorted(set(tokenizer.encode(text, add_special_tokens=False)))}


@pytest.mark.parametrize("prompt", ["the quick", [1], [1, 2]], ids=str)
def test_the_tokens_of_an_answer_are_its_text(client, tokenizer, prompt):
    """The first space of an answer is there after a text, and not at the beginning of a text."""
    more = {"max_tokens": 6, "temperature": 1, "seed": 4, "extra_body": allow(tokenizer, " fox brown the")}
    done = client.completions.create(model=MODEL, prompt=prompt, logprobs=2, **more).choices[0]
    assert "".join(done.logprobs.tokens) == done.text
    check_places(done.logprobs.tokens, done.logprobs.text_offset, done.text)
    tokens, offsets, text = echoed(client, prompt, **more)
    plain = [(token, start) for token, start in zip(tokens, offsets, strict=True) if token not in ("<s>", "</s>")]
    assert "".join(token for token, _ in plain) == text
    check_places(*map(list, zip(*plain, strict=True)), text)


def test_bytes_of_a_conversation_are_its_text(client, tokenizer):
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "the fox"}], "max_tokens": 24, "logprobs": True}
    ask |= {"temperature": 1, "seed": 5, "top_logprobs": 3, "extra_body": allow(tokenizer, " \U0001f642 the\t")}
    choice = client.chat.completions.create(**ask).choices[0]
    raw = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    assert raw.decode() == choice.message.content
    assert any(entry.token == "\t" for entry in choice.logprobs.content)
    content = []
    for chunk in client.chat.completions.create(**ask, stream=True):
        content += chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else []
    assert content == choice.logprobs.content


@pytest.mark.parametrize("text", [TEXT, " " + TEXT, "</s>the fox"])
def test_the_tokens_of_tokenize_are_the_text(server, tokenizer, text):
    import httpx2

    asked = {"prompt": text, "return_token_strs": True, "add_special_tokens": False}
    answer = httpx2.post(f"{server.url}/tokenize", json=asked, trust_env=False, timeout=120).json()
    assert answer["tokens"] == tokenizer.encode(text, add_special_tokens=False)
    shown = "".join(answer["token_strs"])
    assert shown.replace("\ufffd" * 4, "\U0001f642") == text


def test_the_log_probabilities_of_a_prompt_name_its_tokens(server):
    import httpx2

    asked = {"prompt": "the quick", "prompt_logprobs": 0, "max_tokens": 1, "temperature": 0}
    choice = httpx2.post(f"{server.url}/v1/completions", json=asked, trust_env=False, timeout=120).json()["choices"][0]
    first, *entries = choice["prompt_logprobs"]
    assert first is None
    assert "".join(next(iter(entry.values()))["decoded_token"] for entry in entries) == "the quick"
