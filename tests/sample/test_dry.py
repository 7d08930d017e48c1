"""DRY: the penalties of llama.cpp's rule, written out letter by letter, and what they do to texts."""

import random

import pytest
import torch

from tests.byte_model import save_byte_model
from tests.tiny_models import prompt, save
from tokenmill import ConfigError, load
from tokenmill.hub.names import locate
from tokenmill.sample import dry
from tokenmill.sample.dry import dry_penalties
from tokenmill.text.breakers import breakers_of
from tokenmill.weights.checkpoint import open_checkpoint

TAILS = [((),), ((), (1,)), ((0, 1),), ((2,), (2, 1, 0))]
HOW = {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "last_n": -1, "breakers": {}}


def by_hand(tokens, multiplier, base, allowed_length, last_n, breakers):
    """For every earlier place: how many tokens before it are those at the end of the text, back to a breaker."""
    text = tokens if last_n < 0 else tokens[max(len(tokens) - last_n, 0) :]
    limit = len(text)
    for back in range(len(text)):
        rest = text[len(text) - back :]
        ends = [len(tail) for tail in breakers.get(text[-1 - back], ()) if tuple(rest[: len(tail)]) == tail]
        if ends:
            limit = back - max(ends)
            break
    longest = {}
    for place in range(1, len(text)):
        length = 0
        while length < min(place, limit) and text[place - 1 - length] == text[-1 - length]:
            length += 1
        if length >= allowed_length:
            longest[text[place]] = max(longest.get(text[place], 0), length)
    return {token: multiplier * base ** (length - allowed_length) for token, length in longest.items()
            if () not in breakers.get(token, ())}  # fmt: skip


def test_the_example_of_llama_cpp():
    """a b c c b c y a b c: c would make a repetition of 3 one of 4, y one of 2 one of 3, b one of 1 one of 2."""
    a, b, c, y = range(4)
    found = dry_penalties([a, b, c, c, b, c, y, a, b, c], **HOW)
    assert found == pytest.approx({c: 0.8 * 1.75, y: 0.8})


# What llama.cpp's sampler (llama_sampler_init_dry and its apply, of xllamacpp 2026.10.11549) takes off each logit, with
# multiplier 0.8, base 1.75, allowed length 2, after these texts in tokens of SmolLM2.
OF_LLAMA_CPP = [
    (("User:",), " one two three\nUser: one two three\nUser: one two three", {198: 1.4}),
    (("User:",), " one two three\nUser one two three\nUser one two three", {198: 22.9783}),
    (("</s>",), " one two three</s> one two three</s> one two three", {9617: 1.4}),
    (("\n\n",), " one two three.\n\n one two three.\n\n one two three", {30: 1.4}),
    (("\n\n",), " one two three.\n one two three.\n one two three", {30: 22.9783}),
    (("。",), "的时候。的时候。的时候", {}),  # a character of several tokens
    (("的时",), "一的时候一的时候一", {11567: 1.4}),
    (("ing on",), "the cat singing on the cat singing on the cat", {12027: 0.8}),
    (("aaa", "ab"), "xaab cat xaab cat xaab cat x", {81: 0.8}),
    (("amniotic", "ni"), "the amniotic cat the amniotic cat the amniotic cat", {}),
    (("=" * 60,), f" one two three{'=' * 40} one two three{'=' * 40} one two three", {12704: 1.4}),  # 40 bytes count
]


@pytest.fixture(scope="module")
def tokenizer():
    return open_checkpoint(locate("smollm2-135m")).tokenizer()


@pytest.mark.model
@pytest.mark.parametrize(("breakers", "text", "penalties"), OF_LLAMA_CPP)
def test_breakers_of_several_tokens_are_llama_cpps(breakers, text, penalties, tokenizer):
    found = breakers_of(tokenizer, breakers)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert dry_penalties(tokens, **HOW | {"breakers": found}) == pytest.approx(penalties, abs=1e-3)
    assert breakers_of(tokenizer, breakers) is found, "they are found once"


def test_a_token_that_only_begins_a_breaker_has_its_penalty():
    """a b x a b: x goes on with a repetition; that y would end the breaker `x y` changes nothing."""
    a, b, x, y = range(4)
    assert dry_penalties([a, b, x, a, b], **HOW | {"breakers": {x: ((y,),)}}) == pytest.approx({x: 0.8})
    assert dry_penalties([a, b, x, a, b], **HOW | {"breakers": {x: ((), (y,))}}) == {}
    assert dry_penalties([a, b, x, y, a, b, x, y, a], **HOW | {"allowed_length": 1, "breakers": {x: ((y,),)}}) == (
        pytest.approx({b: 0.8})
    )


@pytest.mark.parametrize("seed", range(60))
def test_any_text(seed):
    rng = random.Random(seed)
    tokens = [rng.randrange(rng.choice((2, 3, 5))) for _ in range(rng.randrange(60))]
    how = HOW | {
        "allowed_length": rng.randrange(1, 5),
        "last_n": rng.choice((-1, 1, 7, 30, 1000)),
        "breakers": {token: rng.choice(TAILS) for token in rng.sample(range(5), rng.randrange(3))},
    }
    assert dry_penalties(tokens, **how) == pytest.approx(by_hand(tokens, **how))


@pytest.mark.parametrize("seed", range(40))
def test_long_repetitions(seed):
    """They are found in linear time, by another way."""
    rng = random.Random(seed)
    part = [rng.randrange(3) for _ in range(rng.choice((1, 3, 50)))]
    tokens = part * rng.randrange(2, 60) + [rng.randrange(3) for _ in range(rng.randrange(3))] + part * 2
    how = HOW | {
        "base": 1.01,
        "last_n": rng.choice((-1, 90)),
        "breakers": dict.fromkeys(rng.sample(range(40), 2), ((),)),
    }
    assert dry_penalties(tokens, **how) == pytest.approx(by_hand(tokens, **how))


def test_a_long_text_of_one_token_takes_linear_time(monkeypatch):
    """Every other client would wait."""
    compared, real = [], dry._common_beginnings
    monkeypatch.setattr(dry, "_common_beginnings", lambda tokens: compared.append(len(tokens)) or real(tokens))
    assert dry_penalties([3] * 20_000, **HOW | {"base": 1.0}) == pytest.approx({3: 0.8})
    assert compared == [20_000]


def test_a_penalty_does_not_overflow(tmp_path):
    """A token that must come can still come."""
    found = dry_penalties([3] * 2000, **HOW)
    assert found == {3: pytest.approx(1e30)}
    assert dry_penalties([3] * 2000, **HOW | {"base": 1.0}) == {3: pytest.approx(0.8)}
    with load(save_byte_model(tmp_path), dtype="float32") as engine:
        how = {"dry_multiplier": 100.0, "dry_base": 100.0, "max_new_tokens": 40, "ignore_eos": True}
        assert engine.generate("x", regex="a{40}", **how).text == "a" * 40
        drawn = engine.generate("x", allowed_token_ids=[97], temperature=0.7, seed=1, **how)
        assert drawn.text == "a" * 40


@pytest.mark.parametrize("program", ["native", "eager"])
def test_a_text_that_repeats_itself_goes_another_way(program, models):
    """A beginning that is said again is not said to its end; greedy and drawn, drafted or not, streamed or not."""
    tokens = prompt(12, seed=1) * 3
    with load(save("llama", models), dtype="float32", program=program, speculate="off") as engine:
        logits_V = engine.logits(tokens)[-1]
        penalties = dry_penalties(tokens, **HOW | {"multiplier": 30.0})
        assert penalties.keys() == {tokens[0]}
        bias = {tokens[0]: float(logits_V.max() - logits_V[tokens[0]]) + 1}
        assert engine.generate(tokens, logit_bias=bias, max_new_tokens=1).tokens == (tokens[0],)
        logits_V[tokens[0]] += bias[tokens[0]] - penalties[tokens[0]]
        how = {"dry_multiplier": 30.0, "ignore_eos": True, "max_new_tokens": 12, "logit_bias": bias}
        done = engine.generate(tokens, **how)
        assert done.tokens[0] == int(logits_V.argmax()) != tokens[0]
        drawn = engine.generate(tokens, temperature=0.9, seed=4, **how).tokens
        session = engine.session(tokens)
        parts = [session.generate(**how | {"max_new_tokens": 4}).tokens for _ in range(3)]
        assert sum(parts, ()) == done.tokens
    with load(save("llama", models), dtype="float32", program=program, speculate="suffix") as engine:
        assert engine.generate(tokens, **how).tokens == done.tokens
        assert engine.generate(tokens, temperature=0.9, seed=4, **how).tokens == drawn


def test_tokens_that_hold_a_breaker_end_a_repetition(tmp_path):
    with load(save_byte_model(tmp_path), dtype="float32") as engine:
        said = "abcdef:abcdef:abc"
        how = {"dry_multiplier": 100.0, "max_new_tokens": 1, "ignore_eos": True}
        (wanted,) = engine.core.inputs.sequences([1], engine.core.inputs.params(how))
        assert wanted.choosing.dry_breakers == {ord(each): ((),) for each in '\n:"*'}
        (wanted,) = engine.core.inputs.sequences([1], engine.core.inputs.params(how | {"dry_sequence_breakers": "b"}))
        assert wanted.choosing.dry_breakers == {ord("b"): ((),)}
        logits_V = engine.logits(said)[-1]
        bias = {ord("d"): float(logits_V.max() - logits_V[ord("d")]) + 1}
        assert engine.generate(said, max_new_tokens=1, logit_bias=bias).tokens == (ord("d"),)
        assert engine.generate(said, logit_bias=bias, **how).tokens != (ord("d"),)
        short = how | {"dry_sequence_breakers": ("b",)}  # since the last b only one token was said again
        assert engine.generate(said, logit_bias=bias, **short).tokens == (ord("d"),)
        assert torch.isfinite(logits_V).all()
        of_two = how | {"dry_sequence_breakers": ("bc",)}  # of two tokens here
        (wanted,) = engine.core.inputs.sequences([1], engine.core.inputs.params(of_two))
        assert wanted.choosing.dry_breakers == {ord("b"): ((ord("c"),),)}
        assert engine.generate(said, logit_bias=bias, **of_two).tokens == (ord("d"),)


@pytest.mark.parametrize("given", [{"dry_base": 0.5}, {"dry_multiplier": -1}, {"dry_allowed_length": 0},
    {"dry_penalty_last_n": -2}, {"dry_sequence_breakers": 3}, {"dry_sequence_breakers": ["x"] * 65},
    {"dry_sequence_breakers": ["x" * 10_001]}])  # fmt: skip
def test_what_is_refused(given, models):
    with load(save("llama", models), program="eager") as engine, pytest.raises(ConfigError, match="dry_"):
        engine.generate([1, 2], **given)
