"""Each filter equals transformers' processor, leaves rows alone where it is off, and treats every row as if alone."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as reference

from tokenmill.sample import filters, native
from tokenmill.sample.logprobs import log_totals
from tokenmill.sample.probabilities import draw, integer_probabilities
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams

INF = float("inf")
# Fixed examples, no clock: the same run everywhere.
thorough = settings(derandomize=True, deadline=None, database=None, max_examples=80)


@st.composite
def logits(draw: st.DrawFn) -> Tensor:
    """Random, tied, all equal, or of very different sizes; with or without forbidden tokens."""
    size, num_rows = draw(st.integers(1, 131)), draw(st.integers(1, 5))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    normal_RV = torch.randn(num_rows, size, generator=noise)
    shape = draw(st.sampled_from(["normal", "peaked", "tied", "equal", "bfloat16"]))
    logits_RV = {
        "normal": normal_RV,
        "peaked": normal_RV * 12,
        "tied": (normal_RV * 2).round(),
        "equal": torch.full_like(normal_RV, -1.5),
        "bfloat16": (normal_RV * 3).bfloat16().float(),
    }[shape]
    if draw(st.booleans()):
        forbidden_RV = torch.rand(num_rows, size, generator=noise) < 0.5
        forbidden_RV[:, draw(st.integers(0, size - 1))] = False
        logits_RV = logits_RV.masked_fill(forbidden_RV, -INF)
    return logits_RV


def column(value: float, logits_RV: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((len(logits_RV),), value, dtype=dtype)


def kept(logits_RV: Tensor) -> Tensor:
    return logits_RV > -INF


def ordered(logits_RV: Tensor) -> Tensor:
    """Which of several equal logits transformers drops is left to an unstable sort: compare values, not ids."""
    return logits_RV.sort(dim=-1).values


def assert_between(fewest_RV: Tensor, narrowed_RV: Tensor, most_RV: Tensor, logits_RV: Tensor) -> None:
    """Kept is at least what the first keeps, at most what the last keeps, as it was, the greedy token included."""
    assert (ordered(fewest_RV) <= ordered(narrowed_RV)).all()
    assert (ordered(narrowed_RV) <= ordered(most_RV)).all()
    assert torch.equal(narrowed_RV[kept(narrowed_RV)], logits_RV[kept(narrowed_RV)])
    assert torch.equal(narrowed_RV.argmax(dim=-1), logits_RV.argmax(dim=-1))


@thorough
@given(logits(), st.floats(0.01, 10.0))
def test_temperature(logits_RV: Tensor, value: float) -> None:
    expected_RV = reference.TemperatureLogitsWarper(value)(None, logits_RV)
    torch.testing.assert_close(filters.temperature(logits_RV, column(value, logits_RV)), expected_RV, rtol=0, atol=0)


@thorough
@given(logits(), st.integers(1, 150))
def test_top_k(logits_RV: Tensor, k: int) -> None:
    expected_RV = reference.TopKLogitsWarper(k)(None, logits_RV)
    assert torch.equal(filters.top_k(logits_RV, column(k, logits_RV, torch.int64), k), expected_RV)


def test_top_k_keeps_ties_at_the_kth_place() -> None:
    logits_RV = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    assert kept(filters.top_k(logits_RV, torch.tensor([2]), 2)).tolist() == [[False, True, True, True, True, False]]


@thorough
@given(logits(), st.floats(1e-6, 0.9999), st.sampled_from([1, 2, 7, 1024]))
def test_top_p(logits_RV: Tensor, p: float, num_candidates: int) -> None:
    narrowed_RV = filters.top_p(logits_RV, column(p, logits_RV, torch.float64), num_candidates)
    # The reference in float64, whose rounding (1e-16 a term) and our rounding to integers stay under 1e-12 together.
    fewest_RV, most_RV = (
        reference.TopPLogitsWarper(min(max(p + change, 0.0), 1.0))(None, logits_RV.double())
        for change in (-1e-12, 1e-12)
    )
    assert_between(fewest_RV, narrowed_RV, most_RV, logits_RV)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.99])
def test_top_p_equals_float32_reference_on_random_logits(p: float) -> None:
    logits_RV = torch.randn(16, 1009, generator=torch.Generator().manual_seed(3)) * 3
    expected_RV = reference.TopPLogitsWarper(p)(None, logits_RV)
    assert torch.equal(filters.top_p(logits_RV, column(p, logits_RV, torch.float64)), expected_RV)


def test_top_p_keeps_the_likeliest_however_small_p() -> None:
    logits_RV = torch.tensor([[0.0, 2.0, 1.0], [1.0, 1.0, 1.0]])
    for p in (1e-300, 1e-12, 1e-3):
        narrowed_RV = filters.top_p(logits_RV, column(p, logits_RV, torch.float64))
        assert kept(narrowed_RV).tolist() == [[False, True, False], [True, False, False]]


@pytest.mark.parametrize(("p", "num_kept"), [(0.1, 1), (0.25, 2), (0.5, 4), (0.51, 5), (0.99, 8)])
def test_top_p_of_equal_logits(p: float, num_kept: int) -> None:
    """Eighths are exact in binary, so the reference cannot be off by rounding."""
    logits_RV = torch.zeros(1, 8)
    narrowed_RV = filters.top_p(logits_RV, column(p, logits_RV, torch.float64))
    assert kept(narrowed_RV)[0].tolist() == [place < num_kept for place in range(8)]
    assert torch.equal(ordered(narrowed_RV), ordered(reference.TopPLogitsWarper(p)(None, logits_RV)))


@thorough
@given(logits(), st.floats(1e-6, 1.0))
def test_min_p(logits_RV: Tensor, p: float) -> None:
    narrowed_RV = filters.min_p(logits_RV, column(p, logits_RV, torch.float64))
    # log p and the difference of logits are float32 and at most 100 here: their rounding is under 100 · 2**-23.
    bound = 2e-5
    fewest_RV, most_RV = (
        reference.MinPLogitsWarper(min(p * change, 1.0))(None, logits_RV.double()) for change in (1 + bound, 1 - bound)
    )
    assert_between(fewest_RV, narrowed_RV, most_RV, logits_RV)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 1.0])
def test_min_p_equals_float32_reference_on_random_logits(p: float) -> None:
    logits_RV = torch.randn(16, 1009, generator=torch.Generator().manual_seed(4)) * 3
    expected_RV = reference.MinPLogitsWarper(p)(None, logits_RV)
    assert torch.equal(filters.min_p(logits_RV, column(p, logits_RV, torch.float64)), expected_RV)


@thorough
@given(logits(), st.floats(0.1, 5.0), st.integers(0, 2**32))
def test_repetition_penalty(logits_RV: Tensor, penalty: float, seed: int) -> None:
    num_rows, size = logits_RV.shape
    tokens_RN = torch.randint(size, (num_rows, 9), generator=torch.Generator().manual_seed(seed))
    places = torch.zeros(num_rows, size, dtype=torch.bool).scatter(1, tokens_RN, True).nonzero().T
    expected_RV = reference.RepetitionPenaltyLogitsProcessor(penalty)(tokens_RN, logits_RV)
    assert torch.equal(filters.repetition_penalty(logits_RV, *places, torch.tensor(penalty)), expected_RV)


@thorough
@given(logits(), st.floats(-2.0, 2.0, width=32), st.floats(-2.0, 2.0, width=32), st.integers(0, 2**32))
def test_presence_and_frequency_penalty(logits_RV: Tensor, presence: float, frequency: float, seed: int) -> None:
    """transformers has neither; the formula is the one of OpenAI's API reference."""
    counts_RV = torch.randint(4, logits_RV.shape, generator=torch.Generator().manual_seed(seed)).float()
    places, penalties = counts_RV.nonzero(as_tuple=True), (torch.tensor(presence), torch.tensor(frequency))
    penalised_RV = filters.presence_and_frequency_penalty(logits_RV, *places, *penalties, counts_RV[places])
    expected_RV = logits_RV.double() - counts_RV * frequency - (counts_RV > 0) * presence
    torch.testing.assert_close(penalised_RV, expected_RV.float())
    assert torch.equal(penalised_RV[counts_RV == 0], logits_RV[counts_RV == 0])


@thorough
@given(logits(), st.dictionaries(st.integers(0, 130), st.floats(-100, 100, width=32), min_size=1))
def test_logit_bias(logits_RV: Tensor, bias: dict[int, float]) -> None:
    num_rows, size = logits_RV.shape
    bias = {token % size: amount for token, amount in bias.items()}
    expected_RV = reference.SequenceBiasLogitsProcessor([[[token], amount] for token, amount in bias.items()])(
        torch.zeros(num_rows, 1, dtype=torch.int64), logits_RV
    )
    rows_N = torch.arange(num_rows).repeat_interleave(len(bias))
    ids_N, bias_N = torch.tensor(list(bias) * num_rows), torch.tensor(list(bias.values()) * num_rows)
    assert torch.equal(filters.logit_bias(logits_RV, rows_N, ids_N, bias_N), expected_RV)


@thorough
@given(logits(), st.lists(st.integers(0, 130), min_size=1, unique=True))
def test_a_bias_of_minus_infinity_forbids(logits_RV: Tensor, ids: list[int]) -> None:
    num_rows, size = logits_RV.shape
    ids = [token % size for token in ids]
    expected_RV = reference.MinNewTokensLengthLogitsProcessor(2, 5, ids)(torch.zeros(num_rows, 6), logits_RV)
    rows_N = torch.arange(num_rows).repeat_interleave(len(ids))
    forbidden_RV = filters.logit_bias(logits_RV, rows_N, torch.tensor(ids * num_rows), torch.tensor(-INF))
    assert torch.equal(forbidden_RV, expected_RV)


def test_each_setting_of_the_draw_has_a_stage_and_the_library_knows_no_other() -> None:
    settings = settings_of(SamplingParams)
    of_the_draw = {name for name, told in settings.items() if told.stage == "draw"}
    assert filters.DRAW.keys() == of_the_draw - {"xtc_threshold"}  # which says more of xtc_probability
    assert next(iter(filters.DRAW)) == "top_n_sigma" and list(filters.DRAW)[-1] == "xtc_probability"
    assert set(native.KNOWN) <= filters.DRAW.keys()


def penalised(change: Callable[..., Tensor], logits_RV: Tensor, *penalties_R: Tensor) -> Tensor:
    """Every token has occurred, once."""
    rows_N, ids_N = torch.ones_like(logits_RV).nonzero(as_tuple=True)
    return change(logits_RV, rows_N, ids_N, *(penalty_R[rows_N] for penalty_R in penalties_R))


def presence_and_frequency(logits_RV: Tensor, *penalties_R: Tensor) -> Tensor:
    return penalised(filters.presence_and_frequency_penalty, logits_RV, *penalties_R, torch.ones(len(logits_RV)))


# Filters with one parameter per row: the filter, a value that narrows or changes, the value that is off.
PER_ROW: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, float]] = {
    "temperature": (filters.temperature, torch.tensor(0.7), 1),
    "top_k": (lambda x, k: filters.top_k(x, k, 3), torch.tensor(3), 0),
    "top_p": (filters.top_p, torch.tensor(0.6, dtype=torch.float64), 1),
    "top_p that needs all": (lambda x, p: filters.top_p(x, p, 1), torch.tensor(0.6, dtype=torch.float64), 1),
    "min_p": (filters.min_p, torch.tensor(0.2, dtype=torch.float64), 0),
    "repetition_penalty": (lambda x, p: penalised(filters.repetition_penalty, x, p), torch.tensor(1.3), 1),
    "presence_penalty": (lambda x, p: presence_and_frequency(x, p, 0 * p), torch.tensor(0.5), 0),
    "frequency_penalty": (lambda x, p: presence_and_frequency(x, 0 * p, p), torch.tensor(0.5), 0),
}


def bits(logits_RV: Tensor) -> Tensor:
    """Tells -0.0 from 0.0, which `equal` does not."""
    return logits_RV.view(torch.int32)


@pytest.mark.parametrize("name", PER_ROW)
@pytest.mark.parametrize("size", [7, 131, 4099])
def test_rows_are_as_if_alone(name: str, size: int) -> None:
    """Rows that are off come back bit for bit, and the others as they do in a batch of one."""
    function, value, off = PER_ROW[name]
    logits_RV = torch.randn(6, size, generator=torch.Generator().manual_seed(5)) * 4
    logits_RV[:, 0], logits_RV[:, 1] = -0.0, -INF
    before_RV = logits_RV.clone()
    is_on_R = torch.tensor([True, False, True, True, False, True])
    values_R = torch.where(is_on_R, value, torch.full_like(value, off))
    result_RV = function(logits_RV, values_R)
    assert torch.equal(bits(logits_RV), bits(before_RV)), "the input was changed"
    assert torch.equal(bits(result_RV[~is_on_R]), bits(logits_RV[~is_on_R]))
    for row in range(6):
        alone_1V = function(logits_RV[row : row + 1].clone(), values_R[row : row + 1])
        assert torch.equal(bits(alone_1V[0]), bits(result_RV[row]))
        assert bool(is_on_R[row]) != torch.equal(bits(alone_1V[0]), bits(logits_RV[row]))


def test_min_p_at_one_keeps_only_the_likeliest() -> None:
    logits_RV = torch.tensor([[2.0, 2.0, 1.999999]])
    assert kept(filters.min_p(logits_RV, torch.ones(1, dtype=torch.float64))).tolist() == [[True, True, False]]


# ---- what comes after the filters: probabilities.py


def random_logits(num_rows: int, size: int) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(0)) * 3


def test_draw_is_the_inverse_of_the_cumulative_distribution() -> None:
    logits_RV = torch.tensor([0.0, 0.25, 0.5, 0.0, 0.25, 0.0]).log().repeat(6, 1)
    uniform_R = torch.tensor([2.0**-53, 0.24, 0.26, 0.74, 0.76, 1 - 2.0**-53], dtype=torch.float64)
    assert draw(logits_RV, uniform_R).tolist() == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("size", [1, 2, 127, 128, 50257])
def test_integer_probabilities_are_softmax_and_their_sum_fits(size: int) -> None:
    logits_RV = torch.cat([random_logits(2, size) * 4, torch.zeros(1, size)])
    integers_RV = integer_probabilities(logits_RV)
    assert (integers_RV >= 0).all()
    assert sum(integers_RV[2].tolist()) < 2**63
    # Each is rounded down by less than 1 of the largest, which is at least 2**(61 - log2 V).
    bound = size * 2.0 ** (math.log2(size) - 61) + 1e-15
    found_RV = integers_RV.double() / integers_RV.sum(-1, keepdim=True)
    torch.testing.assert_close(found_RV, logits_RV.double().softmax(-1), rtol=1e-12, atol=bound)


def test_log_probability_is_log_softmax() -> None:
    logits_RV = random_logits(4, 50257) * 5
    logits_RV[:, 9] = -INF
    expected_RV = logits_RV.double().log_softmax(-1)
    # Against float64: the result's own rounding, and what rounding V integers down takes (under 1e-9 of the total).
    found_RV = logits_RV.double() - log_totals(logits_RV)
    torch.testing.assert_close(found_RV, expected_RV, rtol=2.0**-23, atol=1e-8)
