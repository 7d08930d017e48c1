"""Integer probabilities by hand, and the log-probabilities that are made of them."""

import pytest
import torch

from tokenmill.sample.filters import allowed_tokens, top_p
from tokenmill.sample.logprobs import log_probability_of
from tokenmill.sample.probabilities import draw, integer_probabilities

INF = float("inf")


@pytest.mark.parametrize(("size", "bits"), [(1, 1), (2, 2), (3, 2), (4, 3), (49152, 16)])
def test_the_likeliest_token_has_a_power_of_two(size, bits):
    """2 ** (62 - bits of V), so that V of them add up to less than 2 ** 63."""
    found = integer_probabilities(torch.zeros(1, size))
    assert found.dtype == torch.int64 and set(found[0].tolist()) == {2 ** (62 - bits)}


def test_the_others_are_in_proportion_and_rounded_down():
    logits = torch.tensor([[5.0, 5.0 - 1.0, -INF]])
    largest, second, none = integer_probabilities(logits)[0].tolist()
    assert (largest, none) == (2**60, 0)
    assert second == int(2**60 * float(torch.tensor(-1.0, dtype=torch.float64).exp()))


@pytest.mark.parametrize(
    ("number", "token"), [(1e-9, 1), (0.25, 1), (0.2501, 2), (0.5, 2), (0.5001, 4), (0.75, 4), (0.9999999, 5)]
)
def test_the_first_token_whose_sum_reaches_the_number_is_drawn(number, token):
    """Four tokens of a quarter each, and two that are forbidden."""
    logits = torch.tensor([[-INF, 1.0, 1.0, -INF, 1.0, 1.0]])
    assert draw(logits, torch.tensor([number], dtype=torch.float64)).tolist() == [token]


def test_entries_are_those_of_log_softmax():
    logits = torch.randn(4, 33, generator=torch.Generator().manual_seed(1)) * 5
    rows, ids = torch.tensor([3, 0, 3]), torch.tensor([0, 32, 7])
    found = log_probability_of(logits, rows, ids)
    expected = torch.log_softmax(logits.double(), -1).float()[rows, ids]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_mask_of_allowed_tokens():
    logits = torch.tensor([[1.0, 2.0], [3.0, -4.0]])
    mask = torch.tensor([[True, False], [True, True]])
    assert torch.equal(allowed_tokens(logits, mask), torch.tensor([[1.0, -INF], [3.0, -4.0]]))


def test_without_top_p_the_least_likely_token_stays():
    """The token has an integer probability of 0, and is a token all the same."""
    logits = torch.tensor([[0.0, -1000.0], [0.0, -1000.0]])
    found = top_p(logits, torch.tensor([1.0, 0.999], dtype=torch.float64))
    assert torch.equal(found, torch.tensor([[0.0, -1000.0], [0.0, -INF]]))
