"""Activations: torch's, but a number has the same bits wherever threads cut a row, in any batch."""

import pytest
import torch
from torch.nn import functional as F

from tokenmill.kernels.threads import torch_threads
from tokenmill.model import layers as activations
from tokenmill.model.layers import ACTIVATIONS, XIELU, clamped_swiglu, sigmoid

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TORCHS = {
    "gelu": F.gelu,
    "gelu_fast": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "swish": F.silu,
}


def xielu(x):
    module = XIELU().requires_grad_(False)
    module.alpha_p.fill_(0.3)
    module.alpha_n.fill_(0.7)
    return module.to(x.dtype)(x)


FUNCTIONS = {
    **ACTIVATIONS,
    "sigmoid": sigmoid,
    "xielu": xielu,
    "clamped_swiglu": lambda x: clamped_swiglu(x, x, 1.702, 7.0),
    "tanh": torch.tanh,  # of caps
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_number_has_the_same_bits_wherever_it_stands(name, dtype):
    generator = torch.Generator().manual_seed(1)
    # 41 rows of 4,099 numbers: more than 32,768, from where on torch divides them among threads.
    x, function = (torch.randn(41, 4099, generator=generator) * 3).to(dtype), FUNCTIONS[name]
    with torch_threads(1):
        right = function(x)
        assert all(torch.equal(function(x[row : row + 1])[0], right[row]) for row in range(41))
        halves = torch.cat((x, x), dim=1)[:, :4099]  # as gate and up lie beside each other
        assert torch.equal(function(halves), right)
        for width in range(1, 200, 3):
            assert torch.equal(function(x[0, width : 2 * width + 1].clone()), right[0, width : 2 * width + 1])
    for threads in (2, 3):
        with torch_threads(threads):
            assert torch.equal(function(x), right)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", TORCHS)
def test_they_are_torchs(name, dtype):
    x = torch.cat((torch.linspace(-12, 12, 2001), torch.tensor([0.0, -0.0, 1e-30, -100.0, 100.0, torch.nan]))).to(dtype)
    found, right = ACTIVATIONS[name](x), TORCHS[name](x)
    assert found.dtype == dtype
    torch.testing.assert_close(found, right, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sigmoid_is_torchs(dtype):
    x = torch.cat((torch.linspace(-120, 120, 2001), torch.tensor([torch.inf, -torch.inf]))).to(dtype)
    torch.testing.assert_close(sigmoid(x), torch.sigmoid(x))


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "silu"])
def test_a_compiler_and_other_devices_get_torchs(name, monkeypatch):
    assert ACTIVATIONS[name](torch.ones(3, device="meta")).shape == (3,)
    monkeypatch.setattr(activations, "is_traced", lambda: True)
    monkeypatch.setattr(torch, "exp", None)
    monkeypatch.setattr(torch, "erf", None)
    x = torch.randn(3, 33)
    assert torch.equal(ACTIVATIONS[name](x), TORCHS[name](x))
    assert torch.equal(sigmoid(x), torch.sigmoid(x))
