"""The library's choice of tokens is that of the torch code, for any logits, filters, masks and errors."""

import itertools
import math
import random
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.marks import needs_native
from tokenmill.errors import RequestError
from tokenmill.sample import filters, logprobs, native, sampler
from tokenmill.sample.state import Row
from tokenmill.schedule.choosing import Choosing
from tokenmill.settings.sampling_params import SamplingParams

pytestmark = needs_native
SIZES = (
    1,
    2,
    31,
    32,
    33,
    101,
    513,
    pytest.param(1024, marks=pytest.mark.slow),
    pytest.param(4099, marks=pytest.mark.slow),
)
TEMPERATURES = (1.0, 0.8, 0.3, 2.0, 1e-3, 1e-30, 100.0, 5e-324)
TOP_K, TOP_P, MIN_P = (-1, 1, 2, 5, 40, 900, 2**32 + 1), (0.95, 0.5, 0.999, 1e-9, 1 - 2**-53), (0.05, 1e-3, 1.0, 1e-9)
INF = math.inf


def row(mask: Any = None, seed: int = 0, position: int = 9, **params: Any) -> Row:
    grammar: Any = None if mask is None else object()  # only whether there is one matters here
    return Row(Choosing(SamplingParams(**params), seed, constraint=grammar), position, (1, 0, 1), 2, mask)


def chosen(logits_RV: Tensor, rows: list[Row]) -> Any:
    """The tokens, or what the error says."""
    try:
        return sampler.choose(logits_RV, rows).read().tokens
    except RequestError as error:
        return str(error)


def by_torch(logits_RV: Tensor, rows: list[Row]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "chooses", lambda _: False)
        return chosen(logits_RV, rows)


def random_params(chance: random.Random) -> dict[str, Any]:
    params: dict[str, Any] = {"temperature": chance.choice((0.0, *TEMPERATURES))}
    for name, values in {"top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P}.items():
        if chance.random() < 0.4:
            params[name] = chance.choice(values)
    if chance.random() < 0.1:
        params |= {"logit_bias": {0: 3.0}, "presence_penalty": 0.5, "min_new_tokens": 20}
    return params


def random_mask(chance: np.random.Generator, size: int) -> np.ndarray:
    """Shorter than the vocabulary, as long, or longer; it admits few, half, nearly all, or a single one."""
    count = max(-(-size // 32) + int(chance.choice([0, 0, 0, -1, 1, 3])), 1)
    words_W = chance.integers(0, 2**32, count, dtype=np.uint32)
    kind = chance.integers(4)
    if kind == 0:
        words_W[chance.random(count) < 0.7] = 0
    if kind == 1:
        words_W[chance.random(count) < 0.9] = 2**32 - 1
    if kind == 2:
        words_W[:] = 0
        words_W[chance.integers(count)] = 1 << int(chance.integers(32))
    return words_W.view(np.int32)


def random_logits(chance: np.random.Generator, count: int, size: int) -> Tensor:
    logits_RV = chance.standard_normal((count, size)).astype(np.float32)
    kind = chance.integers(7)
    if kind == 0:
        logits_RV *= 30
    if kind == 1:
        logits_RV *= np.float32(1e-2)
    if kind == 2:
        logits_RV[:] = 1.5
    if kind == 3:
        logits_RV = np.round(logits_RV)  # many are equal
    if kind == 4:
        logits_RV *= np.float32(10.0 ** chance.uniform(-40, 37))
    if kind == 5:
        logits_RV[chance.random(logits_RV.shape) < 0.7] = -INF
    return torch.from_numpy(logits_RV)


def test_a_row_that_is_drawn_by_a_setting_that_the_library_does_not_know_is_drawn_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here the library is made to know no min_p. Rows without it are the library's, and greedy ones need none."""
    chance, pick = np.random.default_rng(0), random.Random(0)
    logits_RV = random_logits(chance, 8, 513)
    masks = [random_mask(chance, 513) if number % 2 else None for number in range(8)]
    params = [random_params(pick) | {"min_p": 0.05 * (number % 3)} for number in range(8)]
    rows = [row(mask, number, 9, **each) for number, (mask, each) in enumerate(zip(masks, params, strict=True))]
    expected = chosen(logits_RV, rows)
    monkeypatch.setattr(native, "_UNKNOWN", [filters.DRAW["min_p"]])
    assert [native.refuses(each) for each in rows] == [
        each.params.temperature > 0 and each.params.min_p > 0 for each in rows
    ]
    drawn = list[Row]()
    draw = sampler._draw
    monkeypatch.setattr(sampler, "_draw", lambda logits_RV, rows: drawn.extend(rows) or draw(logits_RV, rows))
    assert chosen(logits_RV, rows) == expected
    assert drawn == [each for each in rows if native.refuses(each)] and 0 < len(drawn) < 8
    for number, each in enumerate(rows):
        assert chosen(logits_RV[number : number + 1], [each]) == expected[number : number + 1]


@pytest.mark.parametrize("size", SIZES)
def test_is_that_of_torch(size: int) -> None:
    chance, pick = np.random.default_rng(size), random.Random(size)
    for turn in range(8):
        logits_RV = random_logits(chance, 4, size)
        rows = [
            row(random_mask(chance, size) if pick.random() < 0.5 else None, seed, turn + 9, **random_params(pick))
            for seed in range(4)
        ]
        found = chosen(logits_RV, rows)
        assert found == by_torch(logits_RV, rows)
        singly = [chosen(logits_RV[number : number + 1], [one]) for number, one in enumerate(rows)]
        if isinstance(found, list):
            assert singly == [[token] for token in found]
        else:
            assert singly == [by_torch(logits_RV[number : number + 1], [one]) for number, one in enumerate(rows)]


def test_every_filter_beside_every_other() -> None:
    logits_RV = torch.randn(2, 601, generator=torch.Generator().manual_seed(1)) * 3
    logits_RV[1] = logits_RV[1].bfloat16()  # ties
    rows, masks = [], [None, np.full(19, 0x5555_5555, dtype=np.int32)]
    for k, p, least, mask in itertools.product((0, 1, 30, 500), (1.0, 0.9, 0.2), (0.0, 0.01, 0.3), masks):
        rows += [row(mask, k, temperature=t, top_k=k, top_p=p, min_p=least) for t in (0.7, 1.5)]
    for logits_V in logits_RV:
        table_RV = logits_V.repeat(len(rows), 1)
        assert chosen(table_RV, rows) == by_torch(table_RV, rows)


@pytest.mark.parametrize("params", [{"top_p": 0.5}, {"top_k": 3}, {"top_k": 7, "top_p": 0.3, "min_p": 0.5}, {}])
def test_ties(params: dict[str, Any]) -> None:
    """Of equally likely tokens top_p keeps the first, and top_k all that equal the last."""
    logits_RV = torch.zeros(200, 101)
    logits_RV[:, 50:] = 1.0
    logits_RV[:, ::7] = -0.0
    rows = [row(seed=seed, temperature=1.0, **params) for seed in range(200)]
    tokens = chosen(logits_RV, rows)
    assert tokens == by_torch(logits_RV, rows) and len(set(tokens)) > 5
    assert "top_k" not in params or min(tokens) >= 50


def test_the_likeliest_that_top_p_keeps_may_be_below_the_largest() -> None:
    """At a high temperature logits that differ weigh the same: the first is kept, and min_p compares with that."""
    logits_RV = torch.tensor([[-1e-15, 0.0, -1e-16, -3e-14]])
    params = {"temperature": 100.0, "top_p": 1e-3, "min_p": 1.0}
    rows = [row(seed=seed, **params) for seed in range(20)]
    assert chosen(logits_RV.repeat(20, 1), rows) == by_torch(logits_RV.repeat(20, 1), rows) == [0] * 20


def test_rows_in_order() -> None:
    """Rising, falling, and first the one and then the other: a search that divides them badly would take for ever."""
    rising_V = torch.linspace(-9, 0, 3000)
    logits_RV = torch.stack([rising_V, rising_V.flip(0), torch.cat([rising_V[::2], rising_V[::2].flip(0)])])
    for params in ({"top_k": 1000}, {"top_p": 0.9}, {"top_k": 1400, "top_p": 0.99}):
        rows = [row(seed=seed, temperature=0.8, **params) for seed in range(3)]
        assert chosen(logits_RV, rows) == by_torch(logits_RV, rows)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("place", [0, 99])
@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_errors(temperature: float, place: int, value: float) -> None:
    """What a mask hides is an error all the same, and so is a mask that admits nothing that is left."""
    masks = [np.zeros(4, dtype=np.int32) for _ in range(3)]
    masks[1][place // 32] = np.uint32(1 << place % 32).view(np.int32)
    masks[2][1] = -1
    for mask, params in itertools.product((None, *masks), ({}, {"top_p": 0.5, "top_k": 9, "logit_bias": {2: 1.0}})):
        logits_RV = torch.randn(3, 100, generator=torch.Generator().manual_seed(place))
        logits_RV[1, place] = value
        rows = [row(temperature=temperature), row(mask, position=21, temperature=temperature, **params), row()]
        found = chosen(logits_RV, rows)
        assert found == by_torch(logits_RV, rows)
        singly, errors = sampler.sample_singly(logits_RV, rows)
        if isinstance(found, str):
            assert str(errors[1]) == found and list(errors) == [1]
        else:
            assert singly.tokens == found and not errors


def test_a_constraint_that_could_make_no_mask() -> None:
    rows = [row(temperature=1.0), row(RequestError("no mask"))]
    assert chosen(torch.zeros(2, 5), rows) == by_torch(torch.zeros(2, 5), rows) == "no mask"


def test_what_a_penalty_makes_infinite_may_be_hidden_by_a_mask() -> None:
    logits_RV = torch.tensor([[3e38, 1.0, 0.5]])
    mask = np.array([6], dtype=np.int32)
    for params in ({"repetition_penalty": 0.1}, {"repetition_penalty": 0.1, "temperature": 0.5}):
        one = row(mask, **params)._replace(tokens=(0, 0, 0))
        assert chosen(logits_RV, [one]) == by_torch(logits_RV, [one]) != [0]
        assert "not finite" in chosen(logits_RV, [one._replace(mask=None)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_logits_of_another_type_are_drawn_by_the_same_arithmetic(dtype: torch.dtype) -> None:
    logits_RV = torch.randn(8, 501, generator=torch.Generator().manual_seed(3)).to(dtype)
    rows = [row(seed=seed, temperature=0.9, top_p=0.8) for seed in range(8)]
    assert chosen(logits_RV, rows) == chosen(logits_RV.float(), rows) == chosen(logits_RV.repeat(1, 2)[:, :501], rows)


def test_no_row() -> None:
    assert chosen(torch.zeros(0, 5), []) == []


def test_exponentials_are_off_by_less_than_a_unit_in_the_last_place() -> None:
    """Of two tokens the first weighs 2**60 and the other so many times the exponential, rounded down."""
    chance = np.random.default_rng(0)
    below = -np.concatenate(
        [chance.uniform(0, 4.8, 1500), chance.uniform(0, 45, 500), 10.0 ** chance.uniform(-30, 0, 300)]
    )
    logits_RV = torch.from_numpy(np.stack([np.zeros_like(below), below], axis=1).astype(np.float32))
    rows = [row(temperature=1.0)] * len(below)
    found = [each.total - 2**60 for each in native.samples(logits_RV, rows, [None] * len(rows))]
    worst = 0.0
    with localcontext() as context:
        context.prec = 40
        for total, logit in zip(found, logits_RV[:, 1].tolist(), strict=True):
            exact = Decimal(logit).exp() * 2**60
            unit = Decimal(2) ** (math.frexp(math.exp(logit))[1] - 53 + 60)
            rounded_down = max(unit, Decimal(1))  # a weight is a whole number
            error = float((total - exact) / rounded_down)
            worst = max(worst, error, -error if unit >= 1 else -1 - error)
    assert worst < 1


@pytest.mark.parametrize("size", [1, 2, 3, 4, 49152])
def test_weights_add_up_to_the_same_total(size: int) -> None:
    """The likeliest token weighs 2**(62 - bits of V); equal logits weigh the same."""
    (found,) = native.samples(torch.full((1, size), 7.5), [row(temperature=0.7)], [None])
    assert found.total == size * 2 ** (62 - size.bit_length())


@pytest.mark.parametrize("size", SIZES)
def test_scores_are_those_of_torch(size: int) -> None:
    """Totals, ranks and the likeliest tokens, with ties, zeros of both signs and forbidden tokens among them."""
    chance = torch.Generator().manual_seed(size)
    for scale in (1e-3, 1.0, 30.0, 0.0):
        logits_RV = torch.randn(5, size, generator=chance) * scale
        logits_RV[1] = logits_RV[1].round()
        logits_RV[2, torch.rand(size, generator=chance) < 0.9] = -INF
        logits_RV[2, 0] = -0.0
        ids_R = torch.randint(size, (5,), generator=chance)
        for num_top in {0, 1, min(20, size), size}:
            found = logprobs.token_logprobs(logits_RV, ids_R, num_top)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(native, "scores", lambda _: False)
                assert logprobs.token_logprobs(logits_RV, ids_R, num_top) == found
            assert [len(entry.top) for entry in found] == [num_top] * 5


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_a_row_without_a_finite_largest_logit_has_no_log_probabilities(value: float) -> None:
    logits_RV = torch.randn(2, 70)
    logits_RV[0, slice(None) if value == -INF else 3] = value
    broken, whole = logprobs.token_logprobs(logits_RV, torch.tensor([5, 5]), 3)
    assert math.isnan(broken.logprob) and all(math.isnan(each) for _, each in broken.top)
    assert math.isfinite(whole.logprob) and len(whole.top) == 3
