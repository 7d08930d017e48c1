"""How a matrix is rounded for its inputs, and when it is rounded to nearest instead."""

import logging

import pytest
import torch

from tokenmill.calibrate import rounding
from tokenmill.calibrate.rounding import ALGORITHMS, Rounding
from tokenmill.errors import CheckpointError
from tokenmill.quant.gptq import compensation, gptq
from tokenmill.quant.rtn import round_to_nearest

GROUP, GRID = 32, "minimum"


@pytest.fixture
def numbers():
    return torch.randn(6, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(300, 64, generator=generator) * torch.logspace(-2, 1, 64)


def change(stored, numbers, inputs):
    """The mean square of the error of the outputs over the mean square of the outputs."""
    error = inputs.double() @ (stored.values()[:, :64] - numbers).double().T
    return float(error.square().mean() / (inputs.double() @ numbers.double().T).square().mean())


def same(one, other):
    return torch.equal(one.values(), other.values())


@pytest.mark.parametrize("algorithm", ALGORITHMS[1:])
def test_the_codes_are_those_of_the_algorithm(numbers, inputs, algorithm, caplog):
    how = Rounding(algorithm, GROUP, GRID)
    found = how.round("w", numbers, inputs, 4)
    squares = inputs.T @ inputs / len(inputs)
    if algorithm == "importance":
        expected = round_to_nearest(numbers, 4, GROUP, GRID, squares.diagonal())
    else:
        expected = gptq(numbers, bits=4, group=GROUP, grid=GRID, compensated=compensation(squares, GROUP))
    torch.testing.assert_close(found.values(), expected.values(), rtol=0, atol=0.05)
    before, after = how.changes["w"]
    plain = round_to_nearest(numbers, 4, GROUP, GRID, quick=True)
    assert before == pytest.approx(change(plain, numbers, inputs), rel=1e-4)
    assert after == pytest.approx(change(found, numbers, inputs), rel=1e-4)
    assert after < before
    assert caplog.text == ""


def rounded_to_nearest(how, numbers, inputs, why, caplog):
    with caplog.at_level(logging.WARNING):
        found = how.round("w", numbers, inputs, 4)
    assert same(found, round_to_nearest(numbers.float(), 4, GROUP, GRID))
    assert how.changes == {}
    assert [record.getMessage() for record in caplog.records] == [f"w is rounded to nearest: {why}"]


def test_without_inputs(numbers, caplog):
    rounded_to_nearest(Rounding("gptq", GROUP, GRID), numbers, None, "no calibration token reaches it", caplog)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("algorithm", ["importance", "gptq"])
def test_inputs_that_are_no_numbers(numbers, inputs, value, algorithm, caplog):
    inputs[5, 7] = value
    why = "its inputs hold infinite or missing numbers"
    rounded_to_nearest(Rounding(algorithm, GROUP, GRID), numbers, inputs, why, caplog)


def test_what_would_change_the_outputs_more(numbers, inputs, caplog, monkeypatch):
    worse = round_to_nearest(numbers * 2, 4, GROUP, GRID)
    monkeypatch.setattr(Rounding, "_calibrated", lambda *_: worse)
    why = "importance would change its outputs more"
    rounded_to_nearest(Rounding("importance", GROUP, GRID), numbers, inputs, why, caplog)


def test_as_much_is_no_more(numbers, inputs, caplog, monkeypatch):
    alike = round_to_nearest(numbers, 4, GROUP, GRID, quick=True)
    monkeypatch.setattr(Rounding, "_calibrated", lambda *_: alike)
    how = Rounding("importance", GROUP, GRID)
    assert how.round("w", numbers, inputs, 4) is alike
    assert how.changes["w"][0] == how.changes["w"][1] and caplog.text == ""


def test_a_matrix_of_zeros_changes_nothing(inputs):
    how = Rounding("importance", GROUP, GRID)
    how.round("w", torch.zeros(2, 64), inputs, 4)
    assert how.changes["w"] == (0.0, 0.0)


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_a_matrix_that_holds_no_numbers(numbers, inputs, value):
    numbers[1, 1] = value
    with pytest.raises(CheckpointError) as error:
        Rounding("gptq", GROUP, GRID).round("w", numbers, inputs, 4)
    assert str(error.value) == "w cannot be rounded: it holds infinite or missing numbers"


def test_what_is_computed_of_inputs_is_kept_for_all_matrices_that_have_them(numbers, inputs, monkeypatch):
    counted = []
    monkeypatch.setattr(rounding, "compensation", lambda *given: counted.append(1) or compensation(*given))
    how = Rounding("gptq", GROUP, GRID)
    for name in ("a", "b"):
        how.round(name, numbers, inputs, 4)
    how.round("c", numbers, inputs.clone(), 4)
    assert len(counted) == 2 and list(how.changes) == ["a", "b", "c"]


def test_products_wider_than_a_part_are_computed_in_parts(monkeypatch, inputs, numbers):
    whole, parts = Rounding("importance", GROUP, GRID), Rounding("importance", GROUP, GRID)
    whole.round("w", numbers, inputs, 4)
    monkeypatch.setattr(rounding, "COLUMNS", 24)
    parts.round("w", numbers, inputs, 4)
    assert parts.changes["w"] == pytest.approx(whole.changes["w"], rel=1e-5)
