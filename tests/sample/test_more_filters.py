"""top_n_sigma and XTC against their definitions in llama.cpp, row by row, and in a text."""

import math

import numpy as np
import pytest
import torch

from tests.tiny_models import prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.sample import filters
from tokenmill.sample.noise import uniform

INF = float("inf")


def rows(seed: int, size: int = 97) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    logits_RV = torch.randn(6, size, generator=generator) * torch.tensor([0.1, 1.0, 3.0, 8.0, 2.0, 1.0])[:, None]
    logits_RV[4, ::3] = -INF
    return logits_RV


def kept(logits_RV: torch.Tensor) -> list[list[int]]:
    return [torch.isfinite(row_V).nonzero()[:, 0].tolist() for row_V in logits_RV]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("n", [0.5, 1.0, 2.3])
def test_top_n_sigma_keeps_what_is_near_the_largest(seed, n):
    logits_RV = rows(seed)
    wanted = []
    for row_V in logits_RV.double().numpy():
        there = row_V[np.isfinite(row_V)]
        bound = there.max() - n * there.std()
        assert abs(there - bound).min() > 1e-4, "no token is at the border"
        wanted.append(np.flatnonzero(row_V >= bound).tolist())
    n_R = torch.full((6,), n, dtype=torch.float64)
    found_RV = filters.top_n_sigma(logits_RV, n_R)
    assert kept(found_RV) == wanted
    assert kept(filters.top_n_sigma(logits_RV / 7, n_R)) == wanted, "a temperature changes nothing"
    for row in range(6):
        assert torch.equal(filters.top_n_sigma(logits_RV[row : row + 1], n_R[:1])[0], found_RV[row])


def after_xtc(row_V: np.ndarray, threshold: float) -> list[int]:
    """As llama.cpp has it: sorted, all tokens go that are likely enough and are followed by such a token."""
    weights = np.exp(row_V - row_V.max())
    order = np.argsort(-row_V, kind="stable")
    likely = [token for token in order if weights[token] / weights.sum() >= threshold]
    return sorted(set(np.flatnonzero(np.isfinite(row_V)).tolist()) - set(likely[:-1]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threshold", [0.01, 0.05, 0.1, 0.3, 0.6])
def test_xtc_drops_all_likely_tokens_but_the_last(seed, threshold):
    logits_RV = rows(seed)
    threshold_R = torch.full((6,), threshold, dtype=torch.float64)
    found_RV = filters.xtc(logits_RV, threshold_R, torch.ones(6, dtype=torch.bool))
    assert kept(found_RV) == [after_xtc(row_V, threshold) for row_V in logits_RV.double().numpy()]
    strikes_R = torch.tensor([True, False] * 3)
    some_RV = filters.xtc(logits_RV, threshold_R, strikes_R)
    assert torch.equal(some_RV[1::2], logits_RV[1::2]) and torch.equal(some_RV[::2], found_RV[::2])


def test_of_equals_at_the_threshold_all_stay():
    found_RV = filters.xtc(torch.zeros(1, 4), torch.tensor([0.2], dtype=torch.float64), torch.tensor([True]))
    assert kept(found_RV) == [[0, 1, 2, 3]]


def test_chance_is_another_number_than_the_draws(tmp_path):
    """With XTC always and never on, texts differ from each other, and "never" is as without it."""
    engine = load(save("llama", tmp_path), dtype="float32", max_sequences=4)
    how = {"max_new_tokens": 30, "temperature": 1.0, "ignore_eos": True}
    tokens = prompt(5)
    plain = engine.generate(tokens, seed=3, **how).tokens
    assert engine.generate(tokens, seed=3, xtc_probability=0.0, xtc_threshold=0.001, **how).tokens == plain
    always = engine.generate(tokens, seed=3, xtc_probability=1.0, xtc_threshold=0.001, **how).tokens
    assert always != plain
    many = engine.generate([tokens] * 5, seed=3, xtc_probability=1.0, xtc_threshold=0.001, **how)
    assert all(each.tokens == always for each in many)
    assert uniform(3, 5) != uniform(3, 5 + (1 << 31))


def test_the_settings_are_checked():
    from tokenmill.settings.sampling_params import SamplingParams

    for name, value in (("top_n_sigma", -2), ("xtc_probability", 1.5), ("xtc_threshold", math.nan)):
        with pytest.raises(ConfigError, match=name):
            SamplingParams(**{name: value})
