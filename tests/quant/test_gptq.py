"""Rounding with compensation: it is that of the paper, and the library's bits are those of the plain form."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from tests.marks import needs_native, skip_unless_it_runs
from tokenmill.kernels import native_library
from tokenmill.quant import gptq as module
from tokenmill.quant.gptq import NotInvertible, _order, _round_natively, _round_plainly, compensation, gptq
from tokenmill.quant.grid import Fit, fit, round_on

INPUTS, TOKENS = 64, 200


def hessian():
    """The Hessian of inputs that depend on each other, some of them far larger than others."""
    torch.manual_seed(0)
    inputs_TK = torch.randn(TOKENS, INPUTS) @ torch.randn(INPUTS, INPUTS) * torch.rand(INPUTS).pow(4)
    return inputs_TK.t() @ inputs_TK / TOKENS


@needs_native
@pytest.mark.parametrize("build", native_library.BUILDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_library_rounds_to_the_same_bits(build, bits):
    skip_unless_it_runs(build)
    factor_KK = compensation(hessian(), 32).factor_KK
    for num_inputs, num_rows in ((32, 37), (64, 16), (17, 1)):
        part_CR, factor_CC = torch.randn(num_inputs, num_rows), factor_KK[:num_inputs, :num_inputs].contiguous()
        given = part_CR, fit(part_CR, bits), factor_CC, bits
        for plain, native in zip(_round_plainly(*given), _round_natively(*given, build), strict=True):
            assert torch.equal(plain, native)


def eliminated(numbers_RK, hessian_KK, bits, group, kind):
    """The same codes by section 3.3 of the paper, in float64: columns leave the inverse of H one by one.

    No Cholesky factor is made. The scales of a group are searched by `fit`, once its first column is reached.
    """
    left = numbers_RK.double().numpy().copy()
    hessian = hessian_KK.double().numpy()
    order, bounds = _order(hessian_KK.diagonal(), group)
    inverse = np.linalg.inv(hessian + 0.01 * hessian.diagonal().mean() * np.eye(len(hessian)))
    codes = np.zeros(left.shape, dtype=np.uint8)
    scales = np.zeros((len(left), len(bounds) - 1), dtype=np.float32)
    for first, end in pairwise(bounds):
        columns = order[first:end].tolist()
        ahead, weights = inverse.copy(), []
        for column in columns:
            weights.append(1 / ahead[column, column])
            ahead -= np.outer(ahead[:, column], ahead[column]) / ahead[column, column]
        part_CR = torch.from_numpy(left[:, columns].T.copy()).float()
        found = fit(part_CR, bits, kind, torch.tensor(weights).float())
        scales[:, columns[0] // group] = found.scales
        for column in columns:
            codes[:, column] = round_on(found, torch.from_numpy(left[:, column]).float(), bits)
            level = codes[:, column] * found.scales.double().numpy() + found.minimums.double().numpy()
            error = (left[:, column] - level) / inverse[column, column]
            left -= np.outer(error, inverse[column])
            inverse -= np.outer(inverse[:, column], inverse[column]) / inverse[column, column]
    return codes, scales


@pytest.mark.parametrize(("bits", "grid"), [(4, "minimum"), (4, "zero_point"), (4, "symmetric"), (8, "minimum")])
def test_the_codes_are_those_of_the_paper(bits, grid):
    """96 inputs in groups of 64 and 32. A number halfway between two levels may go either way in float32."""
    torch.manual_seed(1)
    inputs_TK = torch.randn(TOKENS, 96) @ (torch.eye(96) + 0.1 * torch.randn(96, 96)) * (0.5 + torch.rand(96))
    hessian_KK, numbers_RK = inputs_TK.t() @ inputs_TK / TOKENS, torch.randn(6, 96)
    stored = gptq(numbers_RK, bits, 64, grid, compensation(hessian_KK, 64))
    codes, scales = eliminated(numbers_RK, hessian_KK, bits, 64, "symmetric" if bits == 8 else grid)
    assert np.mean(stored.codes.numpy() != codes) < 0.02
    np.testing.assert_allclose(stored.scales.numpy(), scales[:, [0, 0, 1]], rtol=0.02)
    assert (stored.minimums is None) == (bits == 8 or grid == "symmetric")
    outputs, wanted = inputs_TK @ stored.values().t(), inputs_TK @ numbers_RK.t()
    assert (outputs - wanted).square().mean() < (0.15 if bits == 4 else 0.005) ** 2 * wanted.square().mean()


def test_large_groups_and_large_columns_come_first():
    order, bounds = _order(torch.tensor([1.0, 2, 8, 4, 3]), 2)
    assert (order.tolist(), bounds) == ([2, 3, 4, 1, 0], [0, 2, 3, 5])
    order, bounds = _order(torch.ones(5), 2)
    assert (order.tolist(), bounds) == ([0, 1, 2, 3, 4], [0, 2, 4, 5])


@pytest.mark.parametrize(("beside", "damping"), [(0.5, 0.01), (1.05, 0.1), (1.5, 1.0)])
def test_damping_grows_until_there_is_a_factor(beside, damping):
    hessian_KK = torch.tensor([[1.0, beside], [beside, 1.0]])
    inverse = np.linalg.inv(hessian_KK.double().numpy() + damping * np.eye(2))
    factor_KK = compensation(hessian_KK, 32).factor_KK
    np.testing.assert_allclose(factor_KK.numpy(), np.linalg.cholesky(inverse).T, rtol=1e-3, atol=1e-4)


def test_inputs_that_are_all_zero_are_rounded_alone():
    assert torch.equal(compensation(torch.zeros(3, 3), 32).factor_KK, torch.eye(3))


def test_what_cannot_be_inverted_is_said():
    with pytest.raises(NotInvertible, match=r"^the products of its inputs have no Cholesky factor$"):
        compensation(torch.tensor([[1.0, 2.5], [2.5, 1.0]]), 32)
    for bad in (torch.inf, torch.nan):
        with pytest.raises(NotInvertible, match=r"^the inputs of the matrix hold infinite or missing numbers$"):
            compensation(torch.tensor([[1.0, 0.0], [0.0, bad]]), 32)


def test_one_group_by_hand():
    """Steps of 1. 0.6 becomes 1: of the error -0.4 in units of 2, half goes to the next column, which becomes 1.8."""
    part_CR, factor_CC = torch.tensor([[0.6], [1.4]]), torch.tensor([[2.0, 2.0], [0.0, 4.0]])
    codes_CR, errors_CR = _round_plainly(part_CR, Fit(torch.ones(1), torch.zeros(1)), factor_CC, 4)
    assert codes_CR.tolist() == [[1], [2]]
    torch.testing.assert_close(errors_CR, torch.tensor([[-0.2], [-0.05]]))
    assert part_CR.tolist() == [[pytest.approx(0.6)], [pytest.approx(1.4)]]


def test_without_the_library_the_plain_form_rounds(monkeypatch):
    monkeypatch.setattr(native_library, "is_usable", lambda: False)
    monkeypatch.setattr(module, "_round_natively", lambda *_: pytest.fail("the library was called"))
    found = Fit(torch.ones(1), torch.zeros(1))
    assert module._round(torch.tensor([[2.6]]), found, torch.ones(1, 1), 4)[0].tolist() == [[3]]


@needs_native
def test_with_the_library_it_rounds(monkeypatch):
    monkeypatch.setattr(module, "_round_plainly", lambda *_: pytest.fail("the plain form was called"))
    found = Fit(torch.ones(1), torch.zeros(1))
    assert module._round(torch.tensor([[2.6]]), found, torch.ones(1, 1), 4)[0].tolist() == [[3]]
    with pytest.raises(AssertionError):
        module._round_natively(torch.ones(2, 3).t(), found, torch.ones(1, 1), 4)
