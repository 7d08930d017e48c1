"""Weight schemes: their facts are true, and a new one is two classes, of facts and of a matrix, and a line for each."""

import pytest
import torch

import tokenmill
from tests.tiny_models import CONTEXT, prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.kernels import native_library
from tokenmill.measure.cost import cost_of
from tokenmill.program import preferred_schemes
from tokenmill.program.native.layouts import LAYOUTS, matrix_layout
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import AS_STORED, REFERENCE, Scheme, find_scheme
from tokenmill.registry import MATRICES, PROGRAMS, SCHEMES, lookup

LONG = prompt(60, seed=5)


class HalfLinear(Matrix):
    """A matrix in float16, multiplied in the dtype of its input."""

    def finish(self):
        self.weight = torch.nn.Parameter(self.weight.detach().half(), requires_grad=False)

    def forward(self, x_TD):
        return torch.nn.functional.linear(x_TD, self.weight.to(x_TD.dtype), self.bias)


class Half(Scheme):
    """A scheme of this test."""

    matrix = "half"
    bits_per_weight = 16.0
    is_plain = False

    def matrix_bytes(self, outputs, inputs, dtype, code_bits):
        return outputs * inputs * 2


@pytest.fixture
def half(monkeypatch):
    monkeypatch.setitem(SCHEMES, "half", f"{__name__}:Half")
    monkeypatch.setitem(MATRICES, "half", f"{__name__}:HalfLinear")


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_gives_every_fact(name):
    scheme = find_scheme(name)
    assert all(hasattr(scheme, fact) for fact in Scheme.__annotations__)
    for dtype in ("float32", "bfloat16"):
        assert matrix_layout(scheme, dtype) in (None, *LAYOUTS)
    assert 0 < scheme.min_agreement <= 1


def test_the_named_schemes_are_what_their_names_say():
    assert find_scheme(REFERENCE).is_plain and not find_scheme(REFERENCE).is_integer
    assert find_scheme(AS_STORED).keeps_codes


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("family", ["llama-mha-tied", "gpt2", "qwen2", "mixtral"])
def test_the_bytes_of_a_scheme_are_the_allocated_ones(family, name, tmp_path):
    """Of the schemes that "auto" never chooses for the plain modules too."""
    path = save(family, tmp_path)
    engine = load(path, program="eager", scheme=name, dtype="float32", max_length=CONTEXT)
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]


def test_what_auto_may_choose():
    preferred = {name: preferred_schemes(lookup(PROGRAMS, name, "program")) for name in PROGRAMS}
    assert preferred == {
        "native": ["dense", "q8", "q4", "file"],
        "aot": ["dense"],
        "compiled": ["dense"],
        "eager": ["packed", "dense"],
    }


@pytest.mark.parametrize("how", [{"program": "eager"}, {"program": "compiled", "compile": "no"}])
def test_a_new_scheme_is_one_class_and_one_line(how, half, tmp_path):
    path = save("llama-mha-tied", tmp_path)
    settings = {"dtype": "float32", "max_length": CONTEXT, **how}
    engine, plain = load(path, scheme="half", **settings), load(path, **settings)
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]
    assert torch.allclose(engine.logits(LONG), plain.logits(LONG), atol=0.02)
    with pytest.raises(ConfigError, match="because scheme is 'half', not dense"):
        load(path, scheme="half", fuse="none", **settings)


@pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}")
def test_the_native_program_refuses_a_scheme_without_a_layout(half, tmp_path):
    path = save("llama", tmp_path)
    for scheme in ("half", "packed"):
        with pytest.raises(ConfigError, match=f"native: does not run scheme {scheme}, only dense, q8, q4, file"):
            tokenmill.load(path, program="native", scheme=scheme)
    assert tokenmill.load(path, scheme="half").program_name == "eager"
