"""The modules of matrices: which class a scheme has, and what a plain one is filled with."""

import pytest
import torch

from tokenmill.quant.matrix import Matrix, make_matrix
from tokenmill.quant.packed import PackedLinear
from tokenmill.quant.quantized import QuantizedLinear
from tokenmill.quant.schemes import find_scheme
from tokenmill.quant.stored import Stored


@pytest.mark.parametrize(
    ("name", "kind"), [("dense", Matrix), ("packed", PackedLinear), ("q8", QuantizedLinear), ("file", QuantizedLinear)]
)
def test_the_module_of_each_scheme(name, kind):
    matrix = make_matrix(find_scheme(name), 5, 3, bias=True)
    assert type(matrix) is kind
    assert matrix.weight.shape == (3, 5) and matrix.bias.shape == (3,)
    assert make_matrix(find_scheme(name), 5, 3, bias=False).bias is None


def test_a_plain_matrix_multiplies_the_rows_that_it_was_filled_with():
    matrix = Matrix(2, 1, bias=True)
    numbers = torch.tensor([[2.0, 3.0]])
    with torch.no_grad():
        matrix.fill([Stored.plain(numbers)])
        matrix.bias.fill_(1.0)
        assert matrix(torch.tensor([[10.0, 100.0]])).tolist() == [[321.0]]
    assert matrix.weight.data_ptr() == numbers.data_ptr() and not matrix.weight.requires_grad


def test_a_plain_matrix_takes_no_codes_and_no_second_part():
    codes = Stored(8, None, torch.zeros(1, 32, dtype=torch.uint8), torch.ones(1, 1))
    with pytest.raises(AssertionError, match="no codes"):
        Matrix(32, 1, bias=False).fill([codes])
    with pytest.raises(ValueError, match="too many"):
        Matrix(2, 2, bias=False).fill([Stored.plain(torch.ones(1, 2))] * 2)
