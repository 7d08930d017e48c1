"""`options` of Ollama's API: each is a setting of the engine, or changes nothing and is named, or is refused."""

import pytest

from tests.serve.conftest import MODEL
from tests.serve.ollama.test_ollama import CHAT, asked, error, whole
from tokenmill.serve.ollama.names import NEUTRAL, OWN, WITHOUT_EFFECT

SAME = [
    ({"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "seed": 3, "top_k": 40, "top_p": 0.9}),
    ({"temperature": 0.9, "seed": 3, "top_k": 0, "top_p": 1}, {"temperature": 0.9, "seed": 3}),
    (
        {"temperature": 1.3, "seed": 3, "top_k": 20.0, "top_p": 0.7, "min_p": 0.02},
        {"temperature": 1.3, "seed": 3, "top_k": 20, "top_p": 0.7, "min_p": 0.02},
    ),
    ({"repeat_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ({"repeat_penalty": 1.3, "repeat_last_n": -1}, {"repetition_penalty": 1.3}),
    ({"repeat_penalty": 1.3, "repeat_last_n": 4096}, {"repetition_penalty": 1.3}),
    ({"repeat_penalty": 1.3, "presence_penalty": 2, "repeat_last_n": 0}, {}),
    ({"repeat_penalty": 1.0, "repeat_last_n": 64}, {}),
    (
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    ),
    ({"min_tokens": 3}, {"min_new_tokens": 3}),
    ({"typical_p": 1.0, "tfs_z": 1, "mirostat": 0, "num_ctx": 64, "seed": None}, {}),
    ({"num_predict": 5.0}, {"max_new_tokens": 5}),
]


@pytest.mark.parametrize(("options", "settings"), SAME, ids=str)
def test_the_text_is_that_of_the_engine(options, settings, http, quiet):
    wanted = quiet.chat(CHAT["messages"], **({"max_new_tokens": 8} | settings)).text
    done = whole(http, "/api/chat", asked("/api/chat", **options))
    assert done.message.content == wanted and not done.warnings


def test_stop_texts(http, quiet):
    text = quiet.chat(CHAT["messages"], max_new_tokens=8).text
    word = text.split()[3]
    done = whole(http, "/api/chat", asked("/api/chat", stop=[word]))
    assert done.done_reason == "stop" and done.message.content == text[: text.index(word)]


@pytest.mark.parametrize("num_predict", [-1, -2, None, 1000])
def test_as_many_tokens_as_fit(num_predict, http):
    done = whole(http, "/api/chat", asked("/api/chat", num_predict=num_predict))
    assert done.done_reason == "length" and done.prompt_eval_count + done.eval_count == 96


def test_what_changes_nothing_is_named(http):
    done = whole(http, "/api/chat", asked("/api/chat", **dict.fromkeys(WITHOUT_EFFECT, 1)))
    assert len(done.warnings) == len(WITHOUT_EFFECT)
    assert all(f"options.{name} " in told for name, told in zip(WITHOUT_EFFECT, done.warnings, strict=True))


def test_a_longer_context_than_there_is_is_said(http):
    (told,) = whole(http, "/api/chat", asked("/api/chat", num_ctx=131072)).warnings
    assert "131072" in told and "96 tokens" in told and "--max-length" in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_predict": 0}, "options.num_predict = 0 is not allowed"),
        ({"num_predict": -3}, "options.num_predict = -3"),
        ({"num_predict": "5"}, "num_predict"),
        ({"num_ctx": "big"}, "options.num_ctx = 'big'"),
        ({"mirostat": 2}, "options.mirostat = 2 is not served"),
        ({"typical_p": 0.7}, "options.typical_p = 0.7 is not served"),
        ({"tfs_z": 0.5}, "options.tfs_z = 0.5 is not served"),
        ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "options.repeat_last_n = 64 is not served"),
        ({"presence_penalty": 1, "repeat_last_n": 33}, "options.repeat_last_n = 33 is not served"),
        ({"repeat_last_n": -2}, "options.repeat_last_n = -2"),
        ({"temprature": 1}, "is 'temperature' meant?"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop": 5}, "stop"),
        ({"seed": -7}, "seed"),
        ({"num_predict": 5, "max_tokens": 6}, "means the same"),
        ({f"other{number}": 1 for number in range(101)}, "options: 101 of them are not allowed"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_wrong_is_named(options, words, http):
    body = {**CHAT, "options": options}
    assert words in error(http, "/api/chat", body)
    assert words in error(http, "/api/generate", {"model": MODEL, "prompt": "w1", "options": options})


def test_no_option_is_in_two_tables():
    tables = (WITHOUT_EFFECT, NEUTRAL, OWN)
    assert sum(map(len, tables)) == len({name for table in tables for name in table})


def test_two_names_of_one_setting(http):
    """An option and one of our own fields beside it, which mean the same, are refused by both names."""
    told = error(http, "/api/chat", asked("/api/chat", num_predict=4) | {"max_tokens": 3})
    assert told == "num_predict means the same as max_tokens: give one of the two"
