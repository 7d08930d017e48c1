"""max_length where it is not given: the model's context, as far as memory allows, with what is never changed."""

from dataclasses import replace
from functools import partial

import pytest

from tests.marks import needs_native
from tokenmill.loader import default_length, fit
from tokenmill.loader.default_length import STEP, follow_context
from tokenmill.loader.fit import fit_for_many
from tokenmill.loader.resolve import resolve
from tokenmill.model.config import Rope
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import DEFAULT_MAX_LENGTH, EngineConfig
from tokenmill.units import size

GIB = 1 << 30
CONTEXT = 131_072
CONFIG = {
    "model_type": "llama",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}
PER_TOKEN = 4 * 2 * 2 * 16 * 4 + 2 * 16 * 4
"""Bytes of a token of that model: K and V of 4 layers of 2 heads of 16 numbers of 4 bytes, and its rotary tables."""

pytestmark = needs_native


def model_of(**changes):
    return read_config({**CONFIG, **changes})


def followed(monkeypatch, available, model=None, **settings):
    model = model or model_of()
    monkeypatch.setattr(default_length, "free_bytes", lambda _: available)
    given = EngineConfig(device="cpu", program=settings.pop("program", "native"), **settings)
    return follow_context(given, partial(resolve, model=model))


@pytest.fixture
def weights():
    return resolve(EngineConfig(device="cpu", program="native"), model_of()).weight_bytes


def test_the_whole_context_where_it_fits(monkeypatch):
    config, why = followed(monkeypatch, 64 * GIB)
    assert (config.max_length, config.cache_tokens, why) == (CONTEXT, None, "")


@pytest.mark.parametrize("steps", [3, 10, 127])
def test_as_much_as_a_quarter_of_the_memory_holds(monkeypatch, weights, steps):
    """Memory for exactly so many tokens gives so many, a byte less a step fewer."""
    exact = weights + 4 * steps * STEP * PER_TOKEN
    config, why = followed(monkeypatch, exact)
    assert config.max_length == steps * STEP
    assert f"texts may have {steps * STEP} tokens, of the model's context of {CONTEXT}" in why
    assert size(steps * STEP * PER_TOKEN) in why and why.endswith("max_length sets another length")
    assert followed(monkeypatch, exact - 4)[0].max_length == max((steps - 1) * STEP, DEFAULT_MAX_LENGTH)


@pytest.mark.parametrize("available", [0, 10_000_000])
def test_never_less_than_the_usual_length(monkeypatch, available):
    """What does not fit then is refused where it is allocated, as before."""
    assert followed(monkeypatch, available)[0].max_length == DEFAULT_MAX_LENGTH


@pytest.mark.parametrize("given", [1, 100, 2048, 4096, CONTEXT])
def test_what_is_given_stays(monkeypatch, given):
    config, why = followed(monkeypatch, 0, max_length=given)
    assert (config.max_length, config.cache_tokens, why) == (given, None, "")


@pytest.mark.parametrize("context", [96, 2047, 2048])
def test_a_short_context_is_left_to_resolve(monkeypatch, context):
    config, why = followed(monkeypatch, 64 * GIB, model_of(max_position_embeddings=context))
    assert (config.max_length, why) == (None, "")


@pytest.mark.parametrize("number", [2, 16, 64])
def test_several_sequences_have_the_cache_of_the_usual_length(monkeypatch, number):
    """Or that of one at its longest, which is more only where they are few."""
    config, _ = followed(monkeypatch, 64 * GIB, model_of(max_position_embeddings=16_384), max_sequences=number)
    usual = resolve(EngineConfig(device="cpu", max_length=DEFAULT_MAX_LENGTH, max_sequences=number), model_of())
    assert config.max_length == 16_384
    assert config.cache_tokens == max(usual.config.cache_tokens, 16_384)


def test_a_cache_that_is_given_bounds_the_length(monkeypatch):
    config, why = followed(monkeypatch, 0, cache_tokens=10_000)
    assert (config.max_length, config.cache_tokens) == (10_000, 10_000) and "as many as cache_tokens" in why
    assert followed(monkeypatch, 0, cache_tokens=100)[0].max_length == DEFAULT_MAX_LENGTH


def test_longrope_stays_within_its_trained_length(monkeypatch):
    """Beyond it all positions are rotated otherwise: what memory is free must not decide what a model says."""
    numbers = (("original_max_position_embeddings", 4096), ("short_factor", (1.0,) * 8), ("long_factor", (2.0,) * 8))
    phi = replace(model_of(), rope=Rope(16, 10_000.0, "longrope", numbers))
    config, why = followed(monkeypatch, 64 * GIB, phi)
    assert config.max_length == 4096 and "LongRoPE" in why
    assert not phi.rope.is_long(config.max_length)
    # One that is long at the usual length already is long whatever memory there is.
    long = replace(phi, rope=replace(phi.rope, scaling=(("original_max_position_embeddings", 1024), *numbers[1:])))
    assert followed(monkeypatch, 64 * GIB, long)[0].max_length == CONTEXT
    assert followed(monkeypatch, 0, long)[0].max_length == DEFAULT_MAX_LENGTH


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"program": "compiled"}, "compiled for lengths"),
        ({"program": "eager", "max_sequences": 2}, "has a block for its longest text"),
        ({"draft_model": "q8"}, "the draft model has a cache"),
        ({"cache": False, "program": "eager"}, "without the cache"),
    ],
)
def test_where_texts_stay_as_they_were(monkeypatch, settings, words):
    config, why = followed(monkeypatch, 64 * GIB, **settings)
    assert config.max_length == DEFAULT_MAX_LENGTH and words in why


def test_one_text_of_program_eager(monkeypatch):
    assert followed(monkeypatch, 64 * GIB, program="eager")[0].max_length == CONTEXT


def test_windows_of_all_layers_take_little(monkeypatch):
    mistral = model_of(model_type="mistral", sliding_window=256)
    assert followed(monkeypatch, GIB, mistral)[0].max_length == CONTEXT


def test_a_server_has_the_same_cache_and_longer_texts(monkeypatch):
    model = model_of(max_position_embeddings=16_384)
    for module in (fit, default_length):
        monkeypatch.setattr(module, "free_bytes", lambda _: 64 * GIB)
    config = EngineConfig(device="cpu", program="native")
    before, after = (fit_for_many(config, model, 16, follow=follow) for follow in (False, True))
    assert (before.max_length, after.max_length) == (DEFAULT_MAX_LENGTH, 16_384)
    assert before.cache_tokens == after.cache_tokens == 16 * DEFAULT_MAX_LENGTH
