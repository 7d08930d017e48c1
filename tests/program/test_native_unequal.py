"""The native program where layers keep rows of other heads and widths: the same bits in any chunk, batch and thread."""

import pytest
import torch

from tests.marks import needs_native, skip_unless_it_runs
from tests.tiny_models import prompt
from tests.unequal_model import save_unequal, written_out
from tokenmill import load
from tokenmill.kernels import native_library
from tokenmill.measure.cost import cost_of
from tokenmill.program.native.program import Native

START = prompt(29, seed=4)

pytestmark = needs_native


@pytest.fixture
def path(tmp_path, monkeypatch):
    return save_unequal(tmp_path / "unequal", monkeypatch)


@pytest.fixture(params=native_library.BUILDS)
def build(request, monkeypatch):
    skip_unless_it_runs(request.param)
    monkeypatch.setattr(Native, "build", request.param)


@pytest.mark.parametrize(
    ("dtype", "cache_format", "scheme"),
    [
        ("float32", "dense", "dense"),
        ("bfloat16", "dense", "dense"),
        ("float32", "int8", "dense"),
        ("float32", "dense", "q4"),
    ],
)
def test_the_same_bits_in_any_chunk_batch_and_number_of_threads(path, build, dtype, cache_format, scheme):
    settings = {"max_length": 60, "dtype": dtype, "cache_format": cache_format, "scheme": scheme}
    settings["program"] = "native"
    wanted = load(path, **settings, threads=1).logits(START)
    is_exact = (dtype, cache_format, scheme) == ("float32", "dense", "dense")
    bound = {"atol": 2e-4, "rtol": 1e-4} if is_exact else {"atol": 0.3 if scheme == "dense" else 2.0, "rtol": 0.3}
    torch.testing.assert_close(wanted, written_out(START), **bound)
    for how in ({"block_size": 3, "max_step_tokens": 5}, {"threads": 2, "max_step_tokens": 2}, {"block_size": 60}):
        engine = load(path, **settings, max_sequences=2, **how)
        stream = engine.stream(prompt(7), max_new_tokens=40, ignore_eos=True)
        next(stream)  # another sequence is in every step
        assert torch.equal(engine.logits(START), wanted)
        stream.close()


@pytest.mark.parametrize("scheme", ["q8", "q4"])
def test_codes_are_those_of_eager_also_from_a_packed_copy(path, scheme):
    """Eager does not round activations. In chunks of 29 tokens a narrow layer follows a wide one in the same memory."""
    settings = {"max_length": 60, "scheme": scheme, "threads": 1, "dtype": "float32"}
    eager = load(path, program="eager", **settings).logits(START)
    for _ in range(2):
        native = load(path, program="native", **settings)
        torch.testing.assert_close(native.logits(START), eager, atol=0.3, rtol=0.3)


def test_its_bytes_are_predicted(path):
    engine = load(path, max_length=60, scheme="q8", dtype="float32")
    assert engine.program_name == "native"
    assert cost_of(engine.core.loaded.resolved).weights_bytes == engine.memory["weights_bytes"]
