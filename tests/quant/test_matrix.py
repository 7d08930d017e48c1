"""The modules of matrices: which class a scheme has, and what a plain one gives away."""

import pytest
import torch

from tokenmill.quant.matrix import Matrix, make_matrix
from tokenmill.quant.packed import PackedLinear
from tokenmill.quant.quantized import QuantizedLinear
from tokenmill.quant.schemes import find_scheme


@pytest.mark.parametrize(
    ("name", "kind"), [("dense", Matrix), ("packed", PackedLinear), ("q8", QuantizedLinear), ("file", QuantizedLinear)]
)
def test_the_module_of_each_scheme(name, kind):
    matrix = make_matrix(find_scheme(name), 5, 3, bias=True)
    assert type(matrix) is kind
    assert matrix.weight.shape == (3, 5) and matrix.bias.shape == (3,)
    assert make_matrix(find_scheme(name), 5, 3, bias=False).bias is None


def test_a_router_is_not_rounded():
    assert make_matrix(find_scheme("q8"), 32, 3, bias=False).fills_in == torch.float32
    assert make_matrix(find_scheme("q8"), 32, 3, bias=False, rounded=False).fills_in is None


def test_a_plain_matrix_multiplies_and_gives_its_rows_away_once():
    matrix = Matrix(2, 1, bias=True)
    with torch.no_grad():
        matrix.weight.copy_(torch.tensor([[2.0, 3.0]]))
        matrix.bias.fill_(1.0)
        assert matrix(torch.tensor([[10.0, 100.0]])).tolist() == [[321.0]]
    (part,) = matrix.take_parts()
    assert part.numbers.tolist() == [[2.0, 3.0]] and not part.numbers.requires_grad and matrix.weight is None
    with pytest.raises(AssertionError, match="released"):
        matrix(torch.ones(1, 2))
    with pytest.raises(AssertionError, match="no rows any more"):
        matrix.take_parts()


def test_a_plain_matrix_keeps_no_codes():
    assert not Matrix.keeps_codes and QuantizedLinear.keeps_codes
    with pytest.raises(NotImplementedError):
        Matrix(2, 1, bias=False).keep(0, None)
