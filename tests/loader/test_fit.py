"""Settings of a server are chosen from memory and processors; what does not fit is refused with what would."""

from dataclasses import replace

import pytest

from tokenmill.errors import CapacityError
from tokenmill.loader import fit
from tokenmill.loader.fit import fit_for_many
from tokenmill.model.families import read_config
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import read_config_json


@pytest.fixture
def model(tmp_path):
    from tests.tiny_models import save

    return read_config(read_config_json(save("llama", tmp_path)))


def fitted(model, monkeypatch, available=10**9, cores=2, num_sequences=None, **settings):
    monkeypatch.setattr(fit, "free_bytes", lambda _: available)
    monkeypatch.setattr(fit, "available_processors", lambda: cores)
    settings = {"dtype": "float32", "device": "cpu", "max_length": 96, "block_size": 8, **settings}
    config = EngineConfig(**settings)
    return fit_for_many(config, model, num_sequences)


@pytest.mark.parametrize(("cores", "most"), [(1, 8), (2, 16), (16, 64)])
def test_sequences_by_cores(model, monkeypatch, cores, most):
    chosen = fitted(model, monkeypatch, cores=cores)
    assert chosen.max_sequences == most and chosen.cache_tokens == most * 96


def test_what_is_given_holds(model, monkeypatch):
    chosen = fitted(model, monkeypatch, num_sequences=3, cache_tokens=160)
    assert (chosen.max_sequences, chosen.cache_tokens) == (3, 160)


def fewer(model, monkeypatch, tokens, **settings):
    """The memory in which so many tokens of cache fit beside the weights."""
    low, high = 0, 10**9
    while high - low > 1:
        middle = (low + high) // 2
        try:
            fitted(model, monkeypatch, middle, cache_tokens=tokens, **settings)
            high = middle
        except CapacityError:
            low = middle
    return high


def test_a_cache_that_fits(model, monkeypatch):
    memory = fewer(model, monkeypatch, 200)
    assert fitted(model, monkeypatch, memory).cache_tokens == 200


def test_a_long_text_fits_where_its_window_does(model, monkeypatch):
    """With a window of 8 and blocks of 8 a text of 96 tokens holds (8 + 24 - 3 + 1) // 8 = 3 blocks at least."""
    windowed = replace(model, windows=(8, 8))
    memory = fewer(model, monkeypatch, 24, max_length=24)
    assert fitted(windowed, monkeypatch, memory).cache_tokens == 24
    with pytest.raises(CapacityError, match="max_length that fits in memory: 96 needed, 24 available"):
        fitted(model, monkeypatch, memory)
    with pytest.raises(CapacityError, match="max_length that fits in memory: 96 needed, 16 available"):
        fitted(windowed, monkeypatch, fewer(model, monkeypatch, 16, max_length=16))


def test_what_does_not_fit_names_what_would(model, monkeypatch):
    memory = fewer(model, monkeypatch, 96)
    with pytest.raises(CapacityError, match="cache_tokens that fit in memory: 104 needed, 96 available"):
        fitted(model, monkeypatch, memory, cache_tokens=104)
    with pytest.raises(
        CapacityError, match=r"max_length that fits in memory: 96 needed, 88 available.*max_length to 88"
    ):
        fitted(model, monkeypatch, memory - 1)
    with pytest.raises(CapacityError, match=r"memory for the weights: .* needed, 1.0 kB available"):
        fitted(model, monkeypatch, 1000)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"block_size": None},
        {"block_size": 96},
        {"block_size": 32},
        {"block_size": None, "program": "eager"},
    ],
)
def test_the_length_that_is_advised_fits(model, monkeypatch, settings):
    """Also where a sequence is one block, which becomes shorter with it, and where not one block fits."""
    memory = fewer(model, monkeypatch, 96, **settings)
    with pytest.raises(CapacityError, match="memory for the weights") as refused:
        fitted(model, monkeypatch, 1000, **settings)
    weights = refused.value.needed
    for share in (0.1, 0.3, 0.6, 0.9):
        available = int(weights + share * (memory - weights))
        with pytest.raises(CapacityError, match=r"change max_length( and block_size)? to \d+$") as refused:
            fitted(model, monkeypatch, available, **settings)
        names, _, advised = refused.value.setting.partition(" to ")
        changed = {name: int(advised) for name in names.split(" and ")}
        assert int(advised) >= 1
        assert fitted(model, monkeypatch, available, **(settings | changed)).max_length == int(advised)


def test_no_room_for_one_token(model, monkeypatch):
    with pytest.raises(CapacityError, match="memory for the weights") as refused:
        fitted(model, monkeypatch, 1000)
    with pytest.raises(CapacityError, match=r"memory for the cache: .* change model or scheme"):
        fitted(model, monkeypatch, refused.value.needed + 100)


def test_weights_that_fill_the_memory_leave_no_room(model, monkeypatch):
    with pytest.raises(CapacityError) as refused:
        fitted(model, monkeypatch, 1000)
    for available in (refused.value.needed, refused.value.needed - 1):
        with pytest.raises(CapacityError, match="memory for the weights"):
            fitted(model, monkeypatch, available)
