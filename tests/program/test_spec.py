"""What is known of a program before it is made: bytes by hand and as allocated, and how one is chosen."""

from dataclasses import replace

import pytest

from tests.tiny_models import save
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.kernels import native_library
from tokenmill.model.config import ModelConfig, Rope
from tokenmill.program.native.spec import NativeSpec, first_rows, has_coded_embedding
from tokenmill.program.spec import ProgramSpec, choose, find_spec, preferred_schemes
from tokenmill.program.torch_specs import AotSpec, CompiledSpec, EagerSpec
from tokenmill.quant.schemes import find_scheme
from tokenmill.registry import PROGRAMS, Entry
from tokenmill.settings.engine_config import EngineConfig

MODEL = ModelConfig(
    family="llama", vocab_size=10, hidden_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=32,
    intermediate_size=96, max_position_embeddings=16, rope=Rope(32, 10000.0),
)  # fmt: skip
MATRICES = (64 + 2 * 32) * 64 + 64 * 64 + 2 * 96 * 64 + 64 * 96  # of a layer
SMALL = 3 * 64 + 10 * 64  # three norms and the embedding


@pytest.mark.parametrize(
    ("tied", "bits", "scheme", "expected"),
    [
        (False, 0.0, "file", False),
        (False, 4.5, "dense", True),
        (True, 4.5, "dense", False),  # without a head of its own
        (True, 4.5, "file", True),
        (True, 0.0, "file", False),
        (True, 4.5, "q8", False),
    ],
)
def test_whether_tokens_are_looked_up_in_codes(tied, bits, scheme, expected):
    model = replace(MODEL, tie_embeddings=tied, embedding_bits=bits)
    assert has_coded_embedding(model, find_scheme(scheme)) is expected


def test_bytes_by_hand():
    assert EagerSpec.weight_bytes(MODEL, "float32", find_scheme("dense")) == 4 * (MATRICES + SMALL + 640)
    assert EagerSpec.weight_bytes(MODEL, "bfloat16", find_scheme("dense")) == 2 * (MATRICES + SMALL + 640)
    assert EagerSpec.weight_bytes(MODEL, "bfloat16", find_scheme("q8")) == (MATRICES + 640) * 36 // 32 + 2 * SMALL


@pytest.mark.parametrize("scheme", ["dense", "q8"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["llama-bias", "llama-mha-tied", "gpt2", "mixtral"])
def test_bytes_are_those_that_eager_allocates(family, dtype, scheme, tmp_path):
    """With biases, which are kept in float32 where rows are rounded, a tied head, positions, and a router."""
    engine = load(save(family, tmp_path), program="eager", scheme=scheme, dtype=dtype)
    assert EagerSpec.weight_bytes(engine.model_config, dtype, find_scheme(scheme)) == engine.memory["weights_bytes"]


@pytest.mark.skipif(not native_library.is_usable(), reason="the library is missing")
@pytest.mark.parametrize("scheme", ["dense", "q8", "q4"])
@pytest.mark.parametrize("family", ["llama-bias", "llama-mha-tied", "gpt2", "mixtral"])
def test_bytes_are_those_that_native_packs(family, scheme, tmp_path):
    engine = load(save(family, tmp_path), program="native", scheme=scheme, dtype="bfloat16", packed_cache=False)
    assert (
        NativeSpec.weight_bytes(engine.model_config, "bfloat16", find_scheme(scheme)) == engine.memory["weights_bytes"]
    )


def test_which_schemes_run():
    runs = {
        spec: [name for name in ("packed", "dense", "q8", "q4", "file") if spec.runs(find_scheme(name))]
        for spec in (EagerSpec, AotSpec, CompiledSpec, NativeSpec)
    }
    assert runs == {
        EagerSpec: ["packed", "dense", "q8", "q4", "file"],
        AotSpec: ["dense", "q8", "q4", "file"],
        CompiledSpec: ["dense", "q8", "q4", "file"],
        NativeSpec: ["dense", "q8", "q4", "file"],
    }


def test_the_facts_of_programs():
    names = ("attends", "only_asked", "has_threads", "finds_drafts", "packs", "prefers_codes")
    assert [getattr(NativeSpec, name) for name in names] == [True, False, True, True, True, True]
    assert [getattr(EagerSpec, name) for name in names] == [False] * 6
    for spec in (AotSpec, CompiledSpec):
        assert [getattr(spec, name) for name in names] == [False, True, False, False, False, False]
    assert ProgramSpec.refuse(None, None, None, "cpu") is None


class Fast(EagerSpec):
    @staticmethod
    def refuse(config, model, cache, device):
        return "is made of glass" if device == "cuda" else None


class Asked(EagerSpec):
    only_asked = True

    @staticmethod
    def runs(scheme):
        return scheme.is_integer


@pytest.fixture
def programs():
    """Others in the table, in this order."""
    before = dict(PROGRAMS)
    asked = Entry("one that is asked for", f"{__name__}:Asked")
    PROGRAMS.clear()
    PROGRAMS.update(fast=Entry("a fast one", f"{__name__}:Fast"), aot=asked, compiled=asked, eager=before["eager"])
    yield
    PROGRAMS.clear()
    PROGRAMS.update(before)


def chosen(device="cpu", **how):
    return choose(EngineConfig(**how), MODEL, None, device)


def test_auto_takes_the_fastest_that_does_not_refuse(programs):
    found = chosen()
    assert (found.name, found.reason, found.refusals) == ("fast", "a fast one; the fastest that does not refuse", {})
    found = chosen("cuda")
    assert (found.name, found.refusals) == ("eager", {"fast": "is made of glass"})
    assert found.reason == "PyTorch modules as they stand; the fastest that does not refuse"


def test_settings_that_ask_for_a_program(programs):
    assert chosen(compile="auto").name == chosen(compile="no").name == "fast"
    assert chosen(compile="static", scheme="q8").name == "compiled"
    assert chosen(aot_package="x", scheme="q8").name == "aot"
    assert chosen(program="eager").reason == "PyTorch modules as they stand; as asked"
    with pytest.raises(ConfigError) as refused:
        chosen(compile="static", scheme="dense")
    assert "(compiled: does not run scheme dense, only q8, q4, file)" in str(refused.value)


def test_where_none_can_run_each_reason_is_told(programs):
    with pytest.raises(ConfigError) as refused:
        choose(EngineConfig(program="fast"), MODEL, None, "cuda")
    assert str(refused.value).endswith(": none can run this model on cuda (fast: is made of glass)")
    del PROGRAMS["eager"]
    with pytest.raises(ConfigError, match=r"program = 'auto' .*: none can run this model on cuda \(fast: is made"):
        chosen("cuda")


def test_schemes_of_codes_are_for_programs_that_multiply_by_them():
    assert preferred_schemes(NativeSpec) == ["dense", "q8", "q4", "file"]
    assert preferred_schemes(EagerSpec) == ["packed", "dense"]
    assert find_spec("native") is NativeSpec


def test_units_lie_within_one_part():
    class Matrix:
        parts = (70, 32)

    assert list(first_rows(Matrix, 32)) == [0, 32, 64, 70]
    assert list(first_rows(Matrix, 102)) == [0, 70]
