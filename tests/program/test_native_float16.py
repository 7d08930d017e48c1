"""float16 in the native program: weights as they are, activations in float32, rows of the cache rounded."""

from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.marks import needs_native, skip_unless_it_runs
from tests.tiny_models import KINDS, prompt, save
from tokenmill.engine.load import load
from tokenmill.kernels import native_library
from tokenmill.loader.pack import save_packed_model
from tokenmill.program.native.program import Native
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

LONG = prompt(97, seed=5)

pytestmark = needs_native


@pytest.fixture(params=native_library.BUILDS)
def build(request, monkeypatch):
    skip_unless_it_runs(request.param)
    monkeypatch.setattr(Native, "build", request.param)


def logits(path, program="native", **settings):
    return load(path, program=program, packed_cache=False, **{"threads": 1, **settings}).logits(LONG).float()


@cache
def eager_logits(path, dtype):
    """Computed once for all builds."""
    return logits(path, "eager", dtype=dtype)


def change(path, how):
    """Write the tensors of a checkpoint anew, in float16."""
    file = path / "model.safetensors"
    save_file({name: how(name, tensor).half() for name, tensor in load_file(file).items()}, file, {"format": "pt"})


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """A folder of checkpoints in float16."""
    folder = tmp_path_factory.mktemp("halves")
    for family in ("llama", "gpt2", "mixtral"):
        change(save(family, folder), lambda name, tensor: tensor)
    return folder


@pytest.mark.parametrize("family", KINDS)
def test_it_is_nearer_to_float32_than_eager(family, build, models):
    """K and V rows are all that is rounded beside the weights; eager rounds what every operation gives.

    Of eager's largest difference, 0.006 to 0.019 of the logits' spread, ours was 0.5 to 0.7.
    """
    path = save(family, models)
    exact, eager = eager_logits(path, "float32"), eager_logits(path, "float16")
    assert (logits(path, dtype="float16") - exact).abs().max() <= (eager - exact).abs().max()


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_weights_in_float16_give_the_bits_of_float32(family, build, halves):
    """Of the same checkpoint, with a cache whose rows do not depend on the dtype."""
    ours, wide = (logits(halves / family, dtype=dtype, cache_format="int8") for dtype in ("float16", "float32"))
    assert torch.equal(ours, wide)


@pytest.mark.parametrize("settings", [{"max_step_tokens": 1}, {"max_step_tokens": 7, "block_size": 3, "threads": 2}])
def test_the_same_bits_in_any_chunk_block_and_thread(settings, build, halves):
    """`tests/program/test_native.py` has more of them for other runs than the default one."""
    path = halves / "mixtral"
    assert torch.equal(logits(path, dtype="float16", **settings), logits(path, dtype="float16"))


def test_products_that_overflow_float16_do_no_harm(build, tmp_path):
    """Inner activations of the MLPs are beyond 2**16, where eager's logits are NaN."""
    path = save("llama", tmp_path)
    change(path, lambda name, tensor: tensor * (2**15 if "up_proj" in name else 2**-11 if "down_proj" in name else 1))
    assert not logits(path, "eager", dtype="float16").isfinite().all()
    exact = logits(path, "eager", dtype="float32")
    assert (logits(path, dtype="float16") - exact).abs().max() <= 0.02 * exact.std()


@pytest.mark.parametrize("scheme", ["q8", "dense"])
def test_a_packed_copy_has_the_bits_of_its_model(scheme, halves, tmp_path):
    """And those of float32: in a quantised model norms, the router and the embedding are in float16."""
    target, settings = tmp_path / "x.packed", {"scheme": scheme, "dtype": "float16", "cache_format": "int8"}
    config = EngineConfig(program="native", **settings)
    save_packed_model(open_checkpoint(halves / "mixtral"), config, target, lambda *_: None)
    ours = logits(halves / "mixtral", **settings)
    assert torch.equal(load(target, cache_format="int8").logits(LONG), ours)
    assert torch.equal(logits(halves / "mixtral", **settings | {"dtype": "float32"}), ours)


def test_the_cache_takes_half_of_float32(models):
    path = save("llama", models)
    small, wide = (load(path, program="native", dtype=dtype).memory["cache_bytes"] for dtype in ("float16", "float32"))
    assert 2 * small == wide
