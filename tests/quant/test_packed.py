"""Matrices in oneDNN's layout: the product. That a row has the same bits among any others is held by test_ways.py."""

import pytest
import torch

from tokenmill.quant.packed import PackedLinear
from tokenmill.quant.stored import Stored

SHAPES = [(24, 17), (64, 576), (576, 1536), (256, 2048)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_the_plain_matrix_product(shape):
    outputs, inputs = shape
    matrix = PackedLinear(inputs, outputs, bias=True).requires_grad_(False)
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(shape, generator=generator)
    matrix.bias.copy_(torch.randn(outputs, generator=generator))
    matrix.fill([Stored.plain(weight)])
    for rows in (1, 3):
        x = torch.randn(rows, inputs, generator=generator)
        # Sums of up to 2,048 products, of which each is rounded to 24 bits.
        torch.testing.assert_close(matrix(x), x @ weight.T + matrix.bias, atol=1e-3, rtol=1e-4)
    assert matrix.weight is None and matrix.packed.nbytes == weight.nbytes
