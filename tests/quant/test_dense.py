"""The plain product: oneDNN's on a CPU, torch's own elsewhere and for a compiler, which gets one row as a sum."""

import pytest
import torch
from torch.nn import functional

from tokenmill.quant import matrix as dense

X = torch.tensor([[1.0, 2.0, -3.0]])
WEIGHT = torch.tensor([[1.0, 0.0, 2.0], [0.5, -1.0, 4.0]])
BIAS = torch.tensor([10.0, 20.0])


@pytest.fixture
def linear_calls(monkeypatch):
    """The number of rows of each call of torch's own product."""
    calls, linear = [], functional.linear

    def counted(x, weight, bias=None):
        calls.append(len(x))
        return linear(x, weight, bias)

    monkeypatch.setattr(functional, "linear", counted)
    return calls


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr(dense, "is_traced", lambda: True)


@pytest.mark.parametrize(("by_dynamo", "by_export"), [(False, False), (True, False), (False, True)])
def test_both_compilers_trace(by_dynamo, by_export, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_dynamo_compiling", lambda: by_dynamo)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: by_export)
    assert dense.is_traced() is (by_dynamo or by_export)


def test_what_is_not_traced_is_the_product_of_ways():
    assert dense.product(X, WEIGHT).tolist() == [[-5.0, -13.5]]
    assert dense.product(X, WEIGHT, BIAS).tolist() == [[5.0, 6.5]]
    assert dense.product(X[:0], WEIGHT).shape == (0, 2)


def test_another_device_has_torchs_product(linear_calls):
    assert dense.product(X.to("meta"), WEIGHT.to("meta")).shape == (1, 2)
    assert linear_calls == [1]


def test_one_traced_row_is_a_sum(linear_calls, traced):
    assert dense.product(X, WEIGHT).tolist() == [[-5.0, -13.5]]
    found = dense.product(X.bfloat16(), WEIGHT.bfloat16(), BIAS.bfloat16())
    assert found.tolist() == [[5.0, 6.5]] and found.dtype == torch.bfloat16
    assert linear_calls == []


def test_several_traced_rows_are_torchs_product(linear_calls, traced):
    assert dense.product(X.expand(2, -1), WEIGHT).tolist() == [[-5.0, -13.5]] * 2
    assert linear_calls == [2]


def test_a_traced_row_elsewhere_is_torchs_product(traced):
    assert dense.is_one_traced_row(X)
    assert not dense.is_one_traced_row(X.expand(2, -1)) and not dense.is_one_traced_row(X[:0])
    assert not dense.is_one_traced_row(X.to("meta"))


def test_realised_values_are_the_same():
    assert dense.realised(X[0]).tolist() == [1.0, 2.0, -3.0]
