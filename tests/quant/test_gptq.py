"""Rounding with compensation: the library's bits are those of the plain form, and the outputs change less by it."""

import pytest
import torch

from tokenmill.kernels import native_library
from tokenmill.quant.gptq import _round_natively, _round_plainly, compensation, gptq
from tokenmill.quant.grid import GRIDS, fit
from tokenmill.quant.rtn import round_to_nearest

INPUTS, ROWS, TOKENS = 160, 37, 400


def hessian():
    """Of inputs that depend on each other, some of them far larger than others."""
    torch.manual_seed(0)
    inputs_TK = torch.randn(TOKENS, INPUTS) @ torch.randn(INPUTS, INPUTS) * torch.rand(INPUTS).pow(4)
    return inputs_TK.t() @ inputs_TK / TOKENS


def loss(stored, numbers_RK, hessian_KK):
    wrong_RK = stored.values()[:, :INPUTS] - numbers_RK
    return float(((wrong_RK @ hessian_KK) * wrong_RK).sum())


@pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}")
@pytest.mark.parametrize("build", native_library.BUILDS)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_library_rounds_to_the_same_bits(build, bits):
    if native_library.BUILDS.index(build) < native_library.BUILDS.index(native_library.best_build()):
        pytest.skip(f"this processor cannot run {build}")
    factor_KK = compensation(hessian(), 32).factor_KK
    for num_inputs, num_rows in ((32, 37), (64, 16), (17, 1)):
        part_CR, factor_CC = torch.randn(num_inputs, num_rows), factor_KK[:num_inputs, :num_inputs].contiguous()
        given = part_CR, fit(part_CR, bits), factor_CC, bits
        for plain, native in zip(_round_plainly(*given), _round_natively(*given, build), strict=True):
            assert torch.equal(plain, native)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_the_outputs_change_less_than_by_rounding_to_nearest(grid, group):
    torch.manual_seed(1)
    numbers_RK, hessian_KK = torch.randn(ROWS, INPUTS), hessian()
    found = gptq(numbers_RK, 4, group, grid, compensation(hessian_KK, group))
    plain = round_to_nearest(numbers_RK, 4, group, grid)
    weighted = round_to_nearest(numbers_RK, 4, group, grid, hessian_KK.diagonal())
    assert loss(found, numbers_RK, hessian_KK) < 0.7 * loss(plain, numbers_RK, hessian_KK)
    assert loss(weighted, numbers_RK, hessian_KK) < loss(plain, numbers_RK, hessian_KK)
