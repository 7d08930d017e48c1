"""Every way of fusing says the same, and one that cannot be is refused."""

import pytest
import torch

from tests.marks import QUICK_FAMILIES
from tests.tiny_models import KINDS, prompt, save
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError
from tokenmill.model.rope import apply_rotary, apply_rotary_in_halves
from tokenmill.settings.engine_config import FUSIBLE

WAYS = ["none", "all", *FUSIBLE]


def engine_for(path, **how):
    return load(
        path, **{"dtype": "float32", "max_length": 64, "threads": 1, "scheme": "dense", "program": "eager", **how}
    )


@pytest.mark.parametrize("family", KINDS)
def test_the_tokens_are_the_same(family, tmp_path):
    path = save(family, tmp_path)
    plain = engine_for(path)
    wanted = plain.generate(prompt(20, seed=1), max_new_tokens=12, ignore_eos=True).tokens
    for way in WAYS if family in QUICK_FAMILIES else ("none", "all"):
        engine = engine_for(path, fuse=way)
        assert engine.generate(prompt(20, seed=1), max_new_tokens=12, ignore_eos=True).tokens == wanted
        assert engine.memory == plain.memory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 12])
def test_halves_are_rotated_to_the_same_bits(dtype, width):
    x, cos, sin = (torch.randn(shape).to(dtype) for shape in ((7, 3, 16), (7, 1, width), (7, 1, width)))
    assert torch.equal(apply_rotary(x, cos, sin), apply_rotary_in_halves(x, cos, sin))


@pytest.mark.slow
def test_compiled_as_well(tmp_path):
    path = save("llama", tmp_path)
    wanted = engine_for(path).generate(prompt(20, seed=1), max_new_tokens=6, ignore_eos=True).tokens
    for way in ("none", "all"):
        engine = engine_for(path, fuse=way, program="compiled", compile="fullgraph", compile_backend="eager")
        assert engine.generate(prompt(20, seed=1), max_new_tokens=6, ignore_eos=True).tokens == wanted


def test_what_is_refused(tmp_path):
    path = save("llama", tmp_path)
    for how, message in (
        ({"fuse": "qkv,norms"}, "fuse = 'norms'.*use one of qkv, gate_up, norm, rotary"),
        ({"fuse": "norm", "scheme": "packed"}, "with qkv and gate_up, because scheme is 'packed'"),
        ({"fuse": "all", "program": "native"}, "fuses by itself, and fuse all"),
    ):
        with pytest.raises(ConfigError, match=message):
            engine_for(path, **how)
