"""Weight schemes: their facts are true, and a new one is two classes, of facts and of a matrix, and a line for each."""

import pytest
import torch

import tokenmill
from tests.marks import needs_native
from tests.tiny_models import CONTEXT, prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.measure.cost import cost_of
from tokenmill.program.native.layouts import LAYOUTS, matrix_layout
from tokenmill.program.spec import preferred_schemes
from tokenmill.quant import schemes as module
from tokenmill.quant.matrix import Matrix
from tokenmill.quant.schemes import AS_STORED, REFERENCE, Scheme, choose, find_scheme
from tokenmill.registry import MATRICES, PROGRAMS, SCHEMES, lookup

LONG = prompt(60, seed=5)


class HalfLinear(Matrix):
    """A matrix in float16, multiplied in the dtype of its input."""

    def fill(self, parts):
        self.weight = torch.nn.Parameter(parts[0].numbers.half(), requires_grad=False)

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
    """The schemes that "auto" never chooses for the plain modules are among them."""
    path = save(family, tmp_path)
    engine = load(path, program="eager", scheme=name, dtype="float32", max_length=CONTEXT)
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]


def test_what_auto_may_choose():
    preferred = {name: preferred_schemes(lookup(PROGRAMS, name, "program")) for name in PROGRAMS}
    assert preferred == {
        "native": ["dense", "q8", "q4", "file"],
        "aot": ["dense"],
        "compiled": ["dense"],
        "graphs": ["dense"],
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


def test_the_facts_by_hand():
    """33 inputs are two groups: 8 bits take 32 codes and a scale for each, 4 bits also a minimum, all in float32."""
    facts = {
        name: [
            getattr(find_scheme(name), fact)
            for fact in ("is_integer", "is_plain", "is_traceable", "keeps_codes", "rounds_to", "bits_per_weight")
        ]
        for name in SCHEMES
    }
    assert facts == {
        "packed": [False, False, False, False, None, None],
        "dense": [False, True, True, False, None, None],
        "q8": [True, False, True, False, 8, 8.5],
        "q4": [True, False, True, False, 4, 5.0],
        "file": [True, False, True, True, None, None],
    }
    num_bytes = {name: find_scheme(name).matrix_bytes(3, 33, "bfloat16", 0) for name in SCHEMES}
    assert num_bytes == {"packed": 198, "dense": 198, "q8": 3 * 2 * 36, "q4": 3 * 2 * 40, "file": 198}
    stored = [find_scheme("file").matrix_bytes(3, 33, "float32", bits) for bits in (0, 4.5, 6.5, 7, 8.5)]
    assert stored == [396, 240, 240, 216, 216]
    assert find_scheme("q8").matrix_bytes(1, 32, "float32", 4.5) == 36


def test_layouts_of_the_native_program():
    layouts = {name: matrix_layout(find_scheme(name), "bfloat16") for name in SCHEMES}
    assert layouts == {
        "packed": None, "dense": "bfloat16", "q8": "8 bits", "q4": "4 bits with minimums", "file": "bfloat16",
    }  # fmt: skip


@pytest.fixture
def no_bfloat16(monkeypatch):
    """A processor whose oneDNN multiplies float32 alone."""
    monkeypatch.setattr(module, "why_no_onednn", lambda dtype: None if dtype == "float32" else f"no {dtype}")


def test_auto_takes_the_first_that_does_not_refuse(no_bfloat16):
    usable = ["packed", "dense"]
    assert [choose("auto", "cpu", dtype, usable)[0] for dtype in ("float32", "bfloat16")] == ["packed", "dense"]
    name, scheme = choose("auto", "cuda:1", "float32", usable)
    assert name == "dense" and type(scheme) is Scheme
    assert choose("q8", "cuda:1", "float32", usable)[0] == "q8"  # what is asked for need not be preferred


def test_a_refusal_says_why(no_bfloat16):
    for name, device, dtype, reason in (
        ("packed", "cuda:1", "float32", "packed needs a CPU, and the device is cuda:1"),
        ("packed", "cpu", "bfloat16", "packed no bfloat16"),
        ("auto", "cpu", "bfloat16", "packed no bfloat16"),
    ):
        with pytest.raises(ConfigError) as refused:
            choose(name, device, dtype, ["packed"])
        assert str(refused.value).endswith(
            f"scheme = {name!r} is not allowed: {reason}; use auto, or another dtype or device"
        )


@needs_native
def test_the_native_program_refuses_a_scheme_without_a_layout(half, tmp_path):
    path = save("llama", tmp_path)
    for scheme in ("half", "packed"):
        with pytest.raises(ConfigError, match=f"native: does not run scheme {scheme}, only dense, q8, q4, file"):
            tokenmill.load(path, program="native", scheme=scheme)
    assert tokenmill.load(path, scheme="half").program_name == "eager"
