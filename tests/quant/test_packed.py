"""Matrices in oneDNN's layout: the product, and the same bits for a row whatever else is in the batch."""

import pytest
import torch

from tokenmill.quant import packed as module
from tokenmill.quant.packed import PackedLinear
from tokenmill.quant.schemes import Packed
from tokenmill.quant.stored import Stored

SHAPES = [(24, 17), (64, 576), (576, 1536), (256, 2048)]


def packed(
    out_features: int, in_features: int, dtype: torch.dtype, bias: bool = False
) -> tuple[PackedLinear, torch.Tensor]:
    matrix = PackedLinear(in_features, out_features, bias).to(dtype)
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(out_features, in_features, generator=generator).to(dtype)
    if matrix.bias is not None:
        with torch.no_grad():
            matrix.bias.copy_(torch.randn(out_features, generator=generator))
    matrix.fill([Stored.plain(weight)])
    return matrix, weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_is_computed_the_same_way_among_any_others(shape, dtype):
    if (reason := Packed.refuse("cpu", str(dtype).removeprefix("torch."))) is not None:
        pytest.skip(reason)
    matrix, _ = packed(*shape, dtype)
    x = torch.randn(70, shape[1], generator=torch.Generator().manual_seed(3)).to(dtype)
    together = matrix(x)
    for row in range(70):
        assert torch.equal(matrix(x[row : row + 1])[0], together[row])
    for rows in (2, 3, 5, 16, 33, 64):
        assert torch.equal(matrix(x[:rows]), together[:rows])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_product_is_the_plain_matrix_product(shape):
    matrix, weight = packed(*shape, torch.float32, bias=True)
    x = torch.randn(3, shape[1])
    torch.testing.assert_close(matrix(x), x @ weight.T + matrix.bias, atol=1e-3, rtol=1e-4)
    assert matrix.weight is None and matrix.packed.nbytes == weight.nbytes


@pytest.mark.parametrize(
    ("dtype", "has_unit", "rows", "portions"),
    [
        (torch.bfloat16, True, 32, [32]),
        (torch.bfloat16, True, 33, [32, 1]),
        (torch.bfloat16, True, 70, [32, 32, 6]),
        (torch.bfloat16, False, 70, [70]),
        (torch.float32, True, 70, [70]),
    ],
)
def test_a_matrix_unit_gets_32_rows_at_a_time(dtype, has_unit, rows, portions, monkeypatch):
    monkeypatch.setattr(module, "HAS_MATRIX_UNIT", has_unit)
    given = []
    monkeypatch.setattr(PackedLinear, "_product", lambda _, x: given.append(len(x)) or x)
    x = torch.arange(rows).to(dtype)[:, None]
    assert torch.equal(PackedLinear(1, 1, bias=False)(x), x) and given == portions


@pytest.mark.parametrize(("rows", "inputs", "taken"), [(1, 1024, 1), (1, 1025, 2), (2, 1025, 2), (1, 3, 1)])
def test_a_wide_row_is_not_multiplied_alone(rows, inputs, taken, monkeypatch):
    given = []

    def pointwise(x, *_):
        given.append(x.shape)
        return x[:, :1].clone()

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", pointwise)
    matrix = PackedLinear(inputs, 1, bias=False)
    matrix.register_buffer("packed", torch.empty(0))
    assert torch.equal(matrix(torch.ones(rows, inputs)), torch.ones(rows, 1))
    assert given == [(taken, inputs)]
