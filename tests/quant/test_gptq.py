"""Rounding with compensation: the library's bits are those of the plain form."""

import pytest
import torch

from tokenmill.kernels import native_library
from tokenmill.quant.gptq import _round_natively, _round_plainly, compensation
from tokenmill.quant.grid import fit

INPUTS, TOKENS = 64, 200


def hessian():
    """Of inputs that depend on each other, some of them far larger than others."""
    torch.manual_seed(0)
    inputs_TK = torch.randn(TOKENS, INPUTS) @ torch.randn(INPUTS, INPUTS) * torch.rand(INPUTS).pow(4)
    return inputs_TK.t() @ inputs_TK / TOKENS


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
