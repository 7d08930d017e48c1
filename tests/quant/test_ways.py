"""A row's product has the same bits alone and among any others, in any number of threads, in every kind of matrix.

The rows cancel out, (u, -u) times (v, v), so that another order of a sum shows: bfloat16 hides nearly all of it for
ordinary numbers. The right bits are those of two rows in one thread, in the same kind of matrix. `make test-processors`
runs this under the instruction sets of other processors.
"""

import logging

import pytest
import torch
from torch.nn import functional as F

from tokenmill.kernels.threads import torch_threads
from tokenmill.model.blocks import Projection
from tokenmill.model.layers import Unfused
from tokenmill.quant import ways
from tokenmill.quant.matrix import Matrix, product
from tokenmill.quant.packed import PackedLinear
from tokenmill.quant.quantized import QuantizedLinear
from tokenmill.quant.schemes import PackedScheme
from tokenmill.quant.stored import Stored

# Wide and narrow ones, among these a head of attention, a router and the gate of a shared expert; odd sizes.
SHAPES = [(24, 17), (16, 16), (576, 576), (576, 1536), (64, 2048), (48, 4096), (16, 2049), (1, 512)]
ROWS = (1, 2, 3, 16, 32, 33, 70, 300)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def numbers(shape, dtype, rows=300):
    """Rows that cancel out, each another one, and a matrix of the shape; the columns in an order drawn at random."""
    outputs, inputs = shape
    generator, half = torch.Generator().manual_seed(outputs + inputs), inputs // 2
    u, v = (torch.randn(count, half, generator=generator).to(dtype) for count in (rows, outputs))
    order = torch.randperm(inputs, generator=generator)
    padded = (F.pad(torch.cat(both, 1), (0, inputs % 2)) for both in ((u, -u), (v, v)))
    return tuple(matrix[:, order].contiguous() for matrix in padded)


def packed(weight):
    outputs, inputs = weight.shape
    matrix = PackedLinear(inputs, outputs, bias=False)
    matrix.fill([Stored.plain(weight)])
    return matrix


def plain(weight):
    outputs, inputs = weight.shape
    matrix = Matrix(inputs, outputs, bias=False)
    matrix.fill([Stored.plain(weight)])
    return matrix


def in_parts(weight):
    outputs, inputs = weight.shape
    sizes = (outputs - outputs // 3, outputs // 3) if outputs > 2 else (outputs,)
    matrix = Unfused(Projection("qkv", inputs, sizes, bias=False))
    matrix.fill([Stored.plain(weight)])
    return matrix


def of_codes(weight):
    outputs, inputs = weight.shape
    matrix = QuantizedLinear(inputs, outputs, bias=False)
    matrix.fill([Stored.plain(weight)])
    return matrix


CASES = [(make, shape) for make in (packed, plain) for shape in SHAPES]
CASES += [(make, (90, 1100)) for make in (in_parts, of_codes)]


def usable(make, dtype):
    if make is packed and (reason := PackedScheme.refuse("cpu", str(dtype).removeprefix("torch."))) is not None:
        pytest.skip(f"scheme packed {reason}")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("make", "shape"), CASES)
def test_a_row_is_computed_the_same_way_among_any_others(shape, make, dtype):
    usable(make, dtype)
    x, weight = numbers(shape, dtype)
    with torch_threads(1):
        matrix = make(weight)
        right = torch.cat([matrix(pair) for pair in x[:80].split(2)])
    for threads in (1, 2):
        with torch_threads(threads):
            assert all(torch.equal(matrix(x[row : row + 1])[0], right[row]) for row in (0, 1, 79))
            for rows in ROWS:
                assert torch.equal(matrix(x[:rows])[:80], right[:rows]), (threads, rows)
            assert torch.equal(matrix(x[40:73])[:33], right[40:73]), threads


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", [packed, plain])
@pytest.mark.parametrize("shape", [(64, 576), (2048, 1024), (96, 4096)])
def test_some_outputs_have_the_bits_that_they_have_among_all(shape, make, dtype):
    """So that ranks may divide a matrix: a share is a narrower matrix."""
    usable(make, dtype)
    x, weight = numbers(shape, dtype, rows=33)
    cuts = [(0, 16), (16, 48), (shape[0] // 3 // 16 * 16, shape[0])]
    for threads in (1, 2):
        with torch_threads(threads):
            whole = make(weight)
            for first, end in cuts:
                share = make(weight[first:end].clone())
                for rows in (1, 2, 3, 33):
                    assert torch.equal(share(x[:rows]), whole(x[:rows])[:, first:end]), (threads, first, end, rows)


def test_the_rows_of_the_trial_cancel_out():
    for inputs in (16, 17):
        x, weight = ways.cancelling(70, inputs, torch.float32)
        assert x.shape == (8, inputs) and weight.shape == (70, inputs)
        assert (x.double() @ weight.double().T).abs().max() < 1e-13  # where float32 sums leave 1e-7
        assert len(torch.unique(weight, dim=0)) == 61


def test_sums_of_stretches_are_seen_of_each_width():
    """Two kernels that sum 1,024 inputs at a time, one by rows of 32 and one by columns: of 2,048 inputs whose second
    half is the first one's negative both would have 0."""

    def by_rows_or_columns(x, weight, bias=None):
        terms = (x[:, None] * weight).unflatten(-1, (-1, 32, 32))
        return (terms.mT if len(x) == 1 else terms).sum(-1).sum(-1).sum(-1)

    for inputs in (1024, 2048, 4096):
        x, weight = ways.cancelling(8, inputs, torch.float32)
        assert not ways.keeps_bits(by_rows_or_columns, x, weight, 1), inputs


def test_a_narrow_matrix_is_tried_with_more_rows_each_alone():
    """A fault that few sums show: here one of 128 rows."""
    x, weight = ways.cancelling(4, 64, torch.float32)
    assert len(x) == 128 and len(torch.unique(x, dim=0)) == 128

    def one_differs(given, weight, bias=None):
        out = torch.zeros(len(given), len(weight))
        return out + 1 if len(given) == 1 and torch.equal(given[0], x[100]) else out

    assert not ways.keeps_bits(one_differs, x, weight, 1)
    assert ways.keeps_bits(lambda given, weight, bias: torch.zeros(len(given), len(weight)), x, weight, 2)


# ---- the choice, on a processor of our making: oneDNN's product is replaced by one with a fault


def faulty(monkeypatch, differs):
    """Have oneDNN's products be 0, and 1 where a product `differs`(rows, outputs, threads); the rows of each call."""
    given = []

    def pointwise(x, weight, *_):
        given.append(len(x))
        return torch.full((len(x), len(weight)), float(differs(len(x), len(weight), torch.get_num_threads()) or 0))

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", pointwise)
    monkeypatch.setattr(ways, "choose", ways.choose.__wrapped__)
    return given


@pytest.mark.parametrize(
    ("differs", "way", "rows", "given"),
    [
        (lambda rows, outputs, threads: False, ways.once, 1, [1]),
        (lambda rows, outputs, threads: rows == 1, ways.twins, 1, [2]),
        (lambda rows, outputs, threads: rows == 1, ways.twins, 70, [70]),
        (lambda rows, outputs, threads: rows > 32, ways.portions, 70, [32, 32, 6]),
        (lambda rows, outputs, threads: rows > 32 or rows == 1, ways.portions, 65, [32, 32, 2]),
        (lambda rows, outputs, threads: threads > 1, ways.twins_in_one_thread, 1, [2]),
        (lambda rows, outputs, threads: threads > 1 or rows > 32, ways.portions_in_one_thread, 33, [32, 2]),
    ],
)
def test_the_first_way_that_keeps_the_bits_is_chosen(differs, way, rows, given, monkeypatch):
    calls = faulty(monkeypatch, differs)
    x, weight = numbers((64, 32), torch.float32)
    with torch_threads(2):
        assert ways.choose(64, 32, torch.float32, 2) is way
        calls.clear()
        assert way(x[:rows], weight, None).shape == (rows, 64) and calls == given


def test_torchs_product_is_the_last_to_try_and_a_broken_promise_is_told(monkeypatch, caplog):
    faulty(monkeypatch, lambda rows, outputs, threads: rows == 2)  # so that twins are of no help
    linear = ways.F.linear

    def rows_apart(x, weight, bias=None):
        return torch.cat([linear(row, weight, bias) for row in x.split(1)])

    monkeypatch.setattr(ways.F, "linear", rows_apart)
    assert ways.choose(64, 32, torch.float32, 1) is rows_apart and not caplog.records
    with caplog.at_level(logging.WARNING):
        found = ways.choose(64, 32, torch.float32, 1, packed=True)
    assert found is ways.twins and "64 x 32 in torch.float32 depend on other rows" in caplog.text


def test_numbers_that_onednn_does_not_multiply_are_torchs(monkeypatch):
    def refuse(*_):
        raise RuntimeError("could not create a primitive descriptor")

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", refuse)
    assert ways.choose.__wrapped__(64, 32, torch.float32, 1) is F.linear
    with pytest.raises(RuntimeError, match="primitive"):
        ways.choose.__wrapped__(64, 32, torch.float32, 1, packed=True)


def test_of_a_large_matrix_some_outputs_are_tried_and_a_single_row_is_doubled(monkeypatch):
    outputs = []
    faulty(monkeypatch, lambda rows, count, threads: outputs.append(count))
    assert ways.choose(50_000, 256, torch.float32, 1) is ways.twins
    assert set(outputs) == {2**22 // 256}


def test_a_shape_is_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr(ways, "keeps_bits", lambda *given: tried.append(given) or True)
    x, weight = torch.ones(3, 7), torch.ones(11, 7)
    for _ in range(3):
        product(x, weight)
    assert len(tried) == 1
