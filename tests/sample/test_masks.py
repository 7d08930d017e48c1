"""Settings that forbid tokens: allowed ids and bad words give the same text however it is computed."""

import json
import math
import shutil
from types import SimpleNamespace

import pytest

from tests.byte_model import save_byte_model
from tests.marks import needs_native
from tests.speculate.test_multi_step import engine_for
from tests.text.test_tokenizer import trained
from tests.word_model import save_word_model
from tokenmill import load
from tokenmill.engine.inputs import InputProcessor
from tokenmill.errors import ConfigError, RequestError
from tokenmill.schedule.row_blocks import Window
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.text.detokenize import Detokenizer
from tokenmill.text.tokenizer import Tokenizer

PROMPTS = [[1, 2, 3], [9], [4, 4, 5, 6, 7]]
NEW = 16
SETTINGS = {
    "allowed": {"allowed_token_ids": [5, 9, 17, 30, 101]},
    "allowed, drawn": {"allowed_token_ids": list(range(0, 200, 3)), "temperature": 0.9, "seed": 4},
    "bad words, drawn": {"bad_words": ["w7", "w9 w30"], "temperature": 0.9, "seed": 4, "top_k": 9},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(save_word_model(tmp_path_factory.mktemp("masks")))


@pytest.fixture(scope="module")
def plain(path):
    return load(path, dtype="float32", program="eager", speculate="off")


@pytest.fixture(scope="module")
def settings(plain):
    """SETTINGS, and words that the greedy texts hold, one of two tokens among them."""
    words = [plain.generate(prompt, max_new_tokens=NEW).text.split() for prompt in PROMPTS]
    return SETTINGS | {"bad words": {"bad_words": [words[0][2], words[1][0], " ".join(words[2][3:5])]}}


@pytest.fixture(scope="module")
def expected(plain, settings):
    """The texts for some settings, one after the other, a token at a time."""
    return {
        name: [plain.generate(prompt, max_new_tokens=NEW, **each) for prompt in PROMPTS]
        for name, each in settings.items()
    }


def test_the_greedy_text_is_the_largest_logit_that_is_left(plain, settings, expected):
    for name in ("allowed", "bad words"):
        given = settings[name]
        bad = [[int(token[1:]) for token in word.split()] for word in given.get("bad_words", ())]
        for prompt, done in zip(PROMPTS, expected[name], strict=True):
            logits_TV = plain.logits([*prompt, *done.tokens])
            for place, token in enumerate(done.tokens):
                before, logits_V = list(done.tokens[:place]), logits_TV[len(prompt) - 1 + place].clone()
                allowed = given.get("allowed_token_ids", range(len(logits_V)))
                forbidden = {word[-1] for word in bad if [*before, word[-1]][-len(word) :] == word}
                left = [number for number in allowed if number not in forbidden]
                assert token == max(left, key=lambda number: logits_V[number])
            assert not any(word in done.text for word in given.get("bad_words", ()))


@pytest.mark.parametrize(
    "engine",
    [
        {"program": "eager", "speculate": "off", "max_sequences": 3, "block_size": 4, "max_step_tokens": 5},
        {"program": "eager", "speculate": "suffix", "max_sequences": 3},
        {"program": "eager", "speculate": "off", "async_scheduling": "on", "max_sequences": 2},
        {"max_sequences": 3},
        {"max_sequences": 1, "draft_model": "q8"},
    ],
    ids=["batch", "drafts", "async", "auto", "draft model"],
)
def test_the_same_text_however_it_is_computed(path, settings, expected, engine):
    engine = load(path, dtype="float32", **engine)
    for name, given in settings.items():
        done = engine.generate(PROMPTS, max_new_tokens=NEW, **given)
        assert [(each.tokens, each.text) for each in done] == [(each.tokens, each.text) for each in expected[name]]
    mixed = [next(iter(engine.generate([PROMPTS[0]], max_new_tokens=NEW, **given))) for given in settings.values()]
    assert [each.tokens for each in mixed] == [expected[name][0].tokens for name in settings]


@needs_native
def test_several_steps_in_one_call_are_not_taken(path, settings, expected):
    engine = engine_for(path)
    for name, given in settings.items():
        done = engine.generate(PROMPTS, max_new_tokens=NEW, **given)
        assert [each.tokens for each in done] == [each.tokens for each in expected[name]]
        assert engine.core.speculation.stats.num_drafted == 0


def test_bad_words_of_a_session_count_from_its_last_prompt(plain, settings):
    given, session = settings["bad words"], plain.session(PROMPTS[0])
    whole = plain.generate(PROMPTS[0], max_new_tokens=12, **given).tokens
    parts = session.generate(max_new_tokens=5, **given).tokens + session.generate(max_new_tokens=7, **given).tokens
    assert parts == whole


def test_a_word_is_forbidden_with_and_without_a_space_before_it():
    tokenizer = Tokenizer(trained())
    spelled = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in ("the", " the")]
    assert spelled[0] != spelled[1]
    config = SimpleNamespace(
        model="any", max_length=64, cache_tokens=64, max_sequences=1, block_size=64,
        cache=True, async_scheduling="off", max_step_tokens=64,
    )  # fmt: skip
    cache = SimpleNamespace(num_blocks=1, window=None)
    resolved = SimpleNamespace(config=config, window=Window(None, 64), longest_text=64, cache=cache, cache_limit=64)
    loaded = SimpleNamespace(
        config=config,
        resolved=resolved,
        model_config=SimpleNamespace(vocab_size=tokenizer.num_tokens, context=64, eos_token_ids=(), has_head=True),
        tokenizer=tokenizer,
        generation_defaults={},
    )
    for words in (["the"], [" the"], ["the", " the"]):
        (sequence,) = InputProcessor(loaded).sequences([1], SamplingParams(bad_words=words))
        assert sequence.choosing.bad_words == tuple(spelled)


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"allowed_token_ids": []}, ConfigError, "at least one id"),
        ({"allowed_token_ids": [-1]}, ConfigError, "allowed_token_ids = -1"),
        ({"allowed_token_ids": ["5"]}, ConfigError, "allowed_token_ids = '5'"),
        ({"allowed_token_ids": 5}, ConfigError, "a list"),
        ({"allowed_token_ids": [500]}, RequestError, "allowed_token_ids: token id 500 is out of range"),
        ({"bad_words": [""]}, ConfigError, "bad_words = ''"),
        ({"bad_words": ["  "]}, ConfigError, "not spaces alone"),
        ({"bad_words": [5]}, ConfigError, "bad_words = 5"),
        ({"bad_words": ["w1"] * 1001}, ConfigError, "at most 1000 words"),
        ({"skip_special_tokens": 1}, ConfigError, "true or false"),
    ],
)
def test_values_that_are_refused(plain, given, error, says):
    with pytest.raises(error, match=says):
        plain.generate([1], max_new_tokens=1, **given)


def test_bad_words_need_a_tokenizer(tmp_path):
    path = save_word_model(tmp_path)
    (path / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="no tokenizer"):
        load(path, dtype="float32").generate([1], bad_words=["w1"])


@pytest.mark.parametrize("cut", range(8))
def test_special_tokens_are_text_if_wanted(cut):
    tokenizer = Tokenizer(trained())
    ids = tokenizer.encode("a<|end|>é the<s></s>🙂", add_special_tokens=False)
    for skips in (True, False):
        detokenizer = Detokenizer(tokenizer, skip_special=skips)
        text = detokenizer.push(ids[:cut]) + detokenizer.push(ids[cut:]) + detokenizer.finish()
        assert text == tokenizer.decode(ids, skip_special=skips)
        assert ("<|end|>" in text) is not skips
    stopped = Detokenizer(tokenizer, skip_special=False, stop=["<|end|>"])
    assert stopped.push(ids) == "a" and stopped.stopped == "<|end|>"


@pytest.mark.parametrize("how", [{"program": "eager"}, pytest.param({"program": "native"}, marks=needs_native)])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "seed": 4}])
def test_what_a_model_suppresses_is_never_drawn(path, plain, tmp_path, how, params):
    """The text is that of a bias of minus infinity; `suppress_tokens` of a GGUF file is read to the same place."""
    first = plain.generate(PROMPTS[0], max_new_tokens=NEW, **params).tokens
    forbidden = sorted(set(first[:3]))
    expected = plain.generate(PROMPTS[0], max_new_tokens=NEW, logit_bias=dict.fromkeys(forbidden, -math.inf), **params)
    copy = shutil.copytree(path, tmp_path / "copy")
    (copy / "generation_config.json").write_text(json.dumps({"suppress_tokens": forbidden}))
    for speculate in ("auto", "suffix"):
        engine = load(str(copy), dtype="float32", speculate=speculate, packed_cache=False, **how)
        assert engine.generate(PROMPTS[0], max_new_tokens=NEW, **params).tokens == expected.tokens
        session = engine.session(PROMPTS[0])
        assert session.generate(max_new_tokens=NEW, logit_bias={forbidden[0]: 100}, **params).tokens == expected.tokens


def test_a_constraint_may_have_a_bad_word_spelled_by_other_tokens(tmp_path):
    """As in vLLM: the tokens of the word are forbidden, and not its letters."""
    path = save_byte_model(tmp_path, vocab_size=258)
    tokenizer = json.loads((path / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["no"] = 257
    tokenizer["model"]["merges"] = [["n", "o"]]
    (path / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with load(path, dtype="float32") as engine:
        assert engine.encode("no", add_special_tokens=False) == [257]
        assert engine.generate("x", choice=["no"]).text == "no"
        assert engine.generate("x", choice=["no", "nx"], bad_words=["no", "x"]).tokens == (*b"no", 256)
        with pytest.raises(RequestError, match=r"every token is masked .* bad_words"):  # forced: one spelling
            engine.generate("x", choice=["no"], bad_words=["no"])
