"""A row's token: the right distribution, the right order of filters, and nothing of its neighbours in it."""

import itertools
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process as reference

from tokenmill.errors import RequestError
from tokenmill.sample.logprobs import TokenLogprobs
from tokenmill.sample.sampler import Sampled, choose
from tokenmill.sample.state import Row
from tokenmill.schedule.choosing import Choosing
from tokenmill.settings.sampling_params import SamplingParams

INF = float("inf")
PROMPT = (3, 1, 4, 1, 5)
OUTPUT = (9, 2, 6, 5, 3, 5)


def row(position: int = len(PROMPT + OUTPUT), seed: int = 0, masked_ids: tuple[int, ...] = (), **params: Any) -> Row:
    choosing = Choosing(SamplingParams(**params), seed, dict.fromkeys(masked_ids, "stop"))
    return Row(choosing, position, PROMPT + OUTPUT, len(PROMPT))


def random_logits(num_rows: int, size: int, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed)) * 3


def sample(logits_RV: Tensor, rows: list[Row]) -> Sampled:
    return choose(logits_RV, rows).read()


def token(logits_RV: Tensor, **how: Any) -> int:
    return sample(logits_RV, [row(**how)]).tokens[0]


# ---- greedy


def test_greedy_takes_the_largest() -> None:
    logits_RV = random_logits(5, 101)
    assert sample(logits_RV, [row()] * 5) == Sampled(logits_RV.argmax(-1).tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [7, 4099])
@pytest.mark.parametrize("params", [{}, {"logprobs": 2}, {"logit_bias": {0: -1.0}}, {"top_p": 0.1, "top_k": 2}])
def test_greedy_ties_go_to_the_lowest_id(dtype: torch.dtype, size: int, params: dict[str, Any]) -> None:
    logits_RV = torch.zeros(3, size, dtype=dtype)
    logits_RV[:, size // 2 :] = 2.0
    logits_RV[1, 1] = 2.0
    logits_RV[2, -1] = 3.0
    assert sample(logits_RV, [row(**params)] * 3).tokens == [size // 2, 1, size - 1]


def test_ties_in_bfloat16_stay_ties() -> None:
    """1.001 and 1.002 are both 1.0 in bfloat16: the lowest id, on both paths."""
    logits_RV = torch.tensor([[0.0, 1.001, 1.002]]).bfloat16()
    assert token(logits_RV) == token(logits_RV, logprobs=0) == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-38, 1e-300, 5e-324])
@pytest.mark.parametrize("scale", [1.0, 1e30])
def test_low_temperature_is_greedy(temperature: float, scale: float) -> None:
    logits_RV = torch.tensor([0.1, -3.0, 0.5, 0.4, -INF]).repeat(64, 1) * scale
    rows = [row(seed=seed, temperature=temperature) for seed in range(64)]
    assert sample(logits_RV, rows).tokens == [2] * 64


def test_low_temperature_draws_among_ties() -> None:
    logits_RV = torch.tensor([0.0, 2.0, 1.0, 2.0]).repeat(64, 1)
    assert set(sample(logits_RV, [row(seed=seed, temperature=1e-20) for seed in range(64)]).tokens) == {1, 3}


# ---- the distribution


def assert_distributed(tokens: list[int], probability_V: Tensor) -> None:
    """Chi-square over the tokens that may occur, at most five standard deviations above its mean; fixed draws."""
    allowed = probability_V > 0
    counts_V = torch.bincount(torch.tensor(tokens), minlength=len(probability_V))
    assert not counts_V[~allowed].any()
    expected = probability_V[allowed].double() * len(tokens)
    assert expected.min() > 5, "chi-square needs a few in every bin"
    freedom = max(int(allowed.sum()) - 1, 1)
    assert ((counts_V[allowed] - expected) ** 2 / expected).sum() < freedom + 5 * math.sqrt(2 * freedom)


PARAMS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "hot": {"temperature": 3.0},
    "top_k": {"temperature": 1.5, "top_k": 5},
    "top_p": {"temperature": 2.0, "top_p": 0.8},
    "min_p": {"temperature": 2.0, "min_p": 0.2},
    "all": {
        "temperature": 2.5,
        "top_k": 9,
        "top_p": 0.95,
        "min_p": 0.05,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {2: 1.5, 8: -2.0, 12: 0.5},
    },
}


def expected_probability(logits_V: Tensor, params: SamplingParams) -> Tensor:
    """transformers' processors one after the other, OpenAI's two penalties by their formula."""
    ids, scores = torch.tensor([PROMPT + OUTPUT]), logits_V[None].clone()
    scores = reference.RepetitionPenaltyLogitsProcessor(float(params.repetition_penalty))(ids, scores)
    for seen in set(OUTPUT):
        scores[0, seen] -= params.presence_penalty + params.frequency_penalty * OUTPUT.count(seen)
    for biased, amount in params.logit_bias.items():
        scores[0, biased] += amount
    scores = reference.TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k:
        scores = reference.TopKLogitsWarper(params.top_k)(ids, scores)
    scores = reference.TopPLogitsWarper(params.top_p)(ids, scores)
    return reference.MinPLogitsWarper(params.min_p)(ids, scores)[0].softmax(-1)


def test_minus_one_is_no_top_k() -> None:
    """vLLM's word for it, also beside rows that have one."""
    logits_RV = random_logits(8, 3000, seed=3)
    off, minus, mixed = (
        sample(logits_RV, [row(temperature=1.0, top_k=k, top_p=0.9, seed=at) for at, k in enumerate(ks)]).tokens
        for ks in ([0] * 8, [-1] * 8, [-1, 0, 0, -1, 5, 0, -1, 0])
    )
    assert off == minus and mixed[:4] + mixed[5:] == off[:4] + off[5:]


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("over", ["positions", "seeds"])
def test_draws_follow_the_distribution(name: str, over: str) -> None:
    num, params = 6000, SamplingParams(**PARAMS[name])
    logits_V = random_logits(1, 13, seed=1)[0] / 2
    places = [(7, place) if over == "positions" else (place, 11) for place in range(num)]
    rows = [Row(Choosing(params, seed), position, PROMPT + OUTPUT, len(PROMPT)) for seed, position in places]
    tokens = sample(logits_V.repeat(num, 1), rows).tokens
    assert_distributed(tokens, expected_probability(logits_V, params))


# ---- alone = among others


def varied_rows(size: int) -> list[Row]:
    """Every filter on and off, alone and together, on sequences of different length."""
    choices: list[dict[str, Any]] = [
        {"temperature": t, "top_k": k, "top_p": p, "min_p": m}
        for t, k, p, m in itertools.product((0.7, 1.0), (0, 4), (0.6, 1.0), (0.0, 0.1))
    ]
    choices += [
        {},
        {"logprobs": 0},
        {"temperature": 0.9, "logprobs": 3},
        {"temperature": 0.9, "logprobs": 20, "top_k": 900},
        {"repetition_penalty": 1.5},
        {"temperature": 1.2, "repetition_penalty": 0.8, "top_p": 0.999},
        {"presence_penalty": 0.5, "logit_bias": {3: 4.0}},
        {"temperature": 0.8, "frequency_penalty": 0.5, "min_new_tokens": 40, "min_p": 0.01},
        {"allowed_token_ids": [5, 9, 40]},
        {"temperature": 1.1, "allowed_token_ids": [0, 2, 9, 40, 77], "min_new_tokens": 60},
        {"bad_words": ["any"]},
        {"temperature": 0.9, "bad_words": ["any"], "allowed_token_ids": list(range(60))},
    ]
    pick = random.Random(0)  # the rows' tokens only need variety
    rows = []
    for seed, params in enumerate(choices):
        tokens = [pick.randrange(size) for _ in range(pick.randrange(10, 50))]
        bad_words = ((3,), (tokens[-1], 9), (*tokens[-2:], 5)) if "bad_words" in params else ()
        choosing = Choosing(SamplingParams(**params), seed, {0: "eos", 2: "eos"}, bad_words=bad_words)
        rows.append(Row(choosing, len(tokens), tokens, 6))
    return rows


@pytest.fixture
def restored_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def reported(sampled: Sampled, index: int) -> object:
    """The log-probabilities of a row, None if it wants none."""
    return None if sampled.logprobs is None else sampled.logprobs[index]


@pytest.mark.usefixtures("restored_threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [101, 4099])
def test_a_row_does_not_depend_on_its_batch(size: int, dtype: torch.dtype) -> None:
    rows = varied_rows(size)
    logits_RV = random_logits(len(rows), size).to(dtype)
    torch.set_num_threads(1)
    alone = [sample(logits_RV[index : index + 1].clone(), [rows[index]]) for index in range(len(rows))]
    shuffle = random.Random(1)
    for num_threads, num_picked in itertools.product((1, 2), (2, 7, len(rows), len(rows))):
        torch.set_num_threads(num_threads)
        picked = shuffle.sample(range(len(rows)), num_picked)
        among = sample(logits_RV[picked], [rows[index] for index in picked])
        assert among.tokens == [alone[index].tokens[0] for index in picked]
        singly = [reported(alone[index], 0) for index in picked]
        assert [reported(among, place) for place in range(num_picked)] == singly  # floats, bit for bit


def test_a_row_of_a_real_vocabulary_does_not_depend_on_its_batch() -> None:
    """Flat logits over 49157 tokens: top_p needs more than its first candidates."""
    logits_RV = random_logits(3, 49157)
    rows = [row(seed=seed, temperature=1.0, top_p=0.97, logprobs=2) for seed in range(3)]
    among = sample(logits_RV, rows)
    for index in range(3):
        alone = sample(logits_RV[index : index + 1].clone(), [rows[index]])
        assert (alone.tokens[0], reported(alone, 0)) == (among.tokens[index], reported(among, index))


def test_seed_and_position_decide() -> None:
    logits_RV = torch.zeros(40, 10_007)
    rows = [row(seed=seed, position=position, temperature=1.0) for seed in range(4) for position in range(10)]
    tokens = sample(logits_RV, rows).tokens
    assert tokens == sample(logits_RV, rows).tokens
    assert len(set(tokens)) > 35  # 40 of 10007: two alike have a chance of 8 %, six of none


def test_logits_are_not_changed() -> None:
    rows = varied_rows(101)
    for dtype in (torch.float32, torch.bfloat16):
        logits_RV = random_logits(len(rows), 101).to(dtype)
        before_RV = logits_RV.clone()
        sample(logits_RV, rows)
        assert torch.equal(logits_RV, before_RV)


def test_works_on_inference_tensors() -> None:
    with torch.inference_mode():
        logits_RV = random_logits(28, 101)
        inside = sample(logits_RV, varied_rows(101))
    assert sample(logits_RV, varied_rows(101)) == inside


# ---- single settings


def test_minimum_length_masks_the_end() -> None:
    logits_RV = torch.tensor([[0.0, 5.0, 3.0, 4.0]])
    num_output = len(OUTPUT)
    logits_RV = torch.cat([logits_RV, torch.full((1, 8), -9.0)], dim=-1)
    assert token(logits_RV, masked_ids=(1, 3), min_new_tokens=num_output + 1) == 2
    assert token(logits_RV, masked_ids=(1, 3), min_new_tokens=num_output) == 1
    assert token(logits_RV, masked_ids=(1, 3)) == 1
    assert token(logits_RV, masked_ids=(), min_new_tokens=num_output + 1) == 1


def test_only_allowed_ids_are_chosen() -> None:
    logits_RV = random_logits(64, 101)
    for temperature in (0.0, 2.0):
        rows = [row(seed=seed, temperature=temperature, allowed_token_ids=(7, 50, 99)) for seed in range(64)]
        tokens = sample(logits_RV, rows).tokens
        assert set(tokens) == {7, 50, 99}
    assert token(logits_RV[:1], allowed_token_ids=(7, 50), logit_bias={7: 100.0, 8: 200.0}) == 7
    with pytest.raises(RequestError, match="allowed_token_ids names token id 101"):
        token(logits_RV[:1], allowed_token_ids=(101,))
    with pytest.raises(RequestError, match=r"every token is masked .* allowed_token_ids"):
        token(logits_RV[:1], allowed_token_ids=(7,), logit_bias={7: -INF})


@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        (((2,),), 1),
        (((5, 2),), 1),  # the output ends with 5
        (((3, 5, 2),), 1),
        (((*OUTPUT, 2),), 1),
        (((5, *OUTPUT, 2),), 2),  # only the output counts, and this would begin in the prompt
        (((6, 2),), 2),
        (((2, 2),), 2),
        (((5, 2), (1,)), 0),
        (((2,), (5, 2)), 1),
    ],
)
def test_the_token_that_would_complete_a_bad_word_is_forbidden(bad: tuple[tuple[int, ...], ...], wanted: int) -> None:
    """vllm/v1/sample/ops/bad_words.py has the same rule."""
    logits_RV = torch.tensor([[1.0, 2.0, 3.0]])
    tokens, params = PROMPT + OUTPUT, SamplingParams(bad_words=["any"])
    one = Row(Choosing(params, bad_words=bad), len(tokens), tokens, len(PROMPT))
    assert choose(logits_RV, [one]).read().tokens == [wanted]
    later = Choosing(params, bad_words=bad, penalties_from=len(OUTPUT + PROMPT))
    longer = one._replace(tokens=(*OUTPUT, *tokens), num_prompt_tokens=0, choosing=later)
    assert choose(logits_RV, [longer]).read().tokens == [wanted]


def test_presence_and_frequency_count_the_output_only() -> None:
    logits_RV = torch.full((1, 11), -9.0)
    logits_RV[0, [4, 5]] = torch.tensor(
        [1.0, 1.5]
    )  # 4 is in the prompt alone; 5 is in the prompt and twice in the output
    assert token(logits_RV) == 5
    assert token(logits_RV, presence_penalty=0.4) == 5
    assert token(logits_RV, presence_penalty=0.6) == 4
    assert token(logits_RV, frequency_penalty=0.2) == 5
    assert token(logits_RV, frequency_penalty=0.3) == 4


def test_repetition_counts_the_prompt_too() -> None:
    logits_RV = torch.full((1, 11), -9.0)
    logits_RV[0, [4, 7]] = torch.tensor([1.5, 1.0])
    assert token(logits_RV) == 4
    assert token(logits_RV, repetition_penalty=2.0) == 7


def test_logit_bias() -> None:
    logits_RV = random_logits(1, 11)
    assert token(logits_RV, logit_bias={8: 100.0}) == 8
    assert token(logits_RV, logit_bias={8: 100.0}, temperature=1.0) == 8


# ---- log-probabilities


def test_logprobs_are_of_the_raw_logits() -> None:
    logits_RV = random_logits(1, 101)
    expected_V = logits_RV[0].log_softmax(-1)
    how = {"temperature": 0.5, "top_k": 3, "repetition_penalty": 1.7, "logit_bias": {7: 50.0}, "logprobs": 4}
    sampled = sample(logits_RV, [row(**how)])
    found = sampled.logprobs[0]
    assert isinstance(found, TokenLogprobs)
    assert sampled.tokens == [7]
    # float32 has 24 bits, the values are under 16, and log_softmax rounds a few times.
    assert found.logprob == pytest.approx(expected_V[7].item(), abs=5e-6)
    assert [place for place, _ in found.top] == expected_V.topk(4).indices.tolist()
    assert [value for _, value in found.top] == pytest.approx(expected_V.topk(4).values.tolist(), abs=5e-6)


def test_logprobs_zero_means_the_chosen_token_only() -> None:
    sampled = sample(random_logits(3, 11), [row(logprobs=0), row(), row(logprobs=2)])
    shown = [entry and len(entry.top) for entry in sampled.logprobs]
    assert shown == [0, None, 2]


def test_top_logprobs_of_equal_logits_are_the_lowest_ids() -> None:
    logits_RV = torch.zeros(1, 101)
    logits_RV[0, ::2] = -0.0
    logits_RV[0, [50, 70]] = torch.tensor([1.0, -1.0])
    found = sample(logits_RV, [row(logprobs=5)]).logprobs[0]
    assert found is not None
    assert [place for place, _ in found.top] == [50, 0, 1, 2, 3]


def test_more_logprobs_than_tokens() -> None:
    found = sample(random_logits(1, 11), [row(logprobs=1000)]).logprobs[0]
    assert found is not None
    assert sorted(place for place, _ in found.top) == list(range(11))


# ---- what cannot be sampled

DRAWN: list[dict[str, Any]] = [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.5}, {"logprobs": 1}]


@pytest.mark.parametrize("params", DRAWN)
@pytest.mark.parametrize("value", [math.nan, INF])
def test_logits_that_are_not_finite(params: dict[str, Any], value: float) -> None:
    logits_RV = random_logits(3, 11)
    logits_RV[1, 4] = value
    rows = [row(position=20, **params), row(position=21, **params), row(position=22, **params)]
    with pytest.raises(RequestError, match="not finite at position 21"):
        sample(logits_RV, rows)


def test_a_mask_does_not_hide_nan() -> None:
    logits_RV = random_logits(1, 11)
    logits_RV[0, 2] = math.nan
    with pytest.raises(RequestError, match="not finite at position 11"):
        token(logits_RV, masked_ids=(2,), min_new_tokens=50)


@pytest.mark.parametrize("params", DRAWN)
def test_everything_masked(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="every token is masked at position 11"):
        token(torch.full((1, 11), -INF), **params)
    with pytest.raises(RequestError, match="every token is masked at position 11"):
        token(torch.zeros(1, 11), masked_ids=tuple(range(11)), min_new_tokens=50, **params)


def test_some_logits_may_be_minus_infinity() -> None:
    logits_RV = torch.full((1, 11), -INF)
    logits_RV[0, 6] = -3.0
    assert [token(logits_RV, **params) for params in DRAWN] == [6] * len(DRAWN)


def test_ids_outside_the_vocabulary() -> None:
    logits_RV = random_logits(1, 11)
    with pytest.raises(RequestError, match=r"logit_bias names token id 11; .*\(11 tokens\)"):
        token(logits_RV, logit_bias={3: 1.0, 11: 1.0})
    with pytest.raises(RequestError, match=r"stop_token_ids names token id 500; .*\(11 tokens\)"):
        token(logits_RV, masked_ids=(2, 500), min_new_tokens=50)
    with pytest.raises(RequestError, match=r"prompt names token id 9; .*\(9 tokens\)"):
        token(logits_RV[:, :9], repetition_penalty=1.1)
