"""GGUF files of every type in the native program: the same bits however they are computed."""

import gguf
import pytest
import torch

from tests import gguf_files
from tests.gguf_files import KIND, WIDE, write_codes
from tests.gguf_models import numbers_of
from tests.marks import needs_native
from tests.tiny_models import VOCABULARY, build
from tests.weights.gguf import test_states
from tokenmill.engine.load import load
from tokenmill.loader.pack import save_packed_model
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint

TYPES = [*gguf_files.HALVES, KIND.F32, KIND.F16, KIND.BF16]
TOKENS = torch.randint(0, VOCABULARY, (97,), generator=torch.Generator().manual_seed(5)).tolist()
HOWS = ({"max_step_tokens": 1}, {"max_step_tokens": 7, "block_size": 3, "threads": 2}, {"threads": 4})

pytestmark = needs_native


def logits(path, **settings):
    settings = {"threads": 1, "dtype": "float32", "program": "native", "packed_cache": False, **settings}
    return load(path, **settings).logits(TOKENS)


def check(path, bound=0.05, **settings):
    """Finite, and alike. The other program rounds no activations: 0.02 of the logits' size were measured at most."""
    whole = logits(path, **settings)
    eager = logits(path, **settings | {"program": "eager"}).float()
    assert (whole - eager).norm() <= bound * eager.norm()
    for how in HOWS:
        assert torch.equal(logits(path, **settings, **how), whole), how


def turns():
    """Each first type with one of the models, and each model with every dtype and both formats of the cache."""
    for turn, first in enumerate(range(0, len(TYPES), 3)):
        for number, name in enumerate(WIDE):
            marks = pytest.mark.slow if number == turn // 3 % len(WIDE) else pytest.mark.long
            yield pytest.param(name, first, marks=marks if turn or number else ())


@pytest.mark.parametrize(("name", "first"), list(turns()))
def test_types_beside_each_other(name, first, tmp_path):
    """Also within one matrix, which is made of those of q, k and v, or of gate and up."""
    path = write_codes(tmp_path / "x.gguf", name, TYPES[first:] + TYPES[:first])
    turn = first // 3
    check(path, dtype=("float32", "bfloat16", "float16")[turn % 3], cache_format=("dense", "int8")[turn % 2])


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("qwen3_next", (KIND.Q4_0, KIND.Q8_0)),
        ("qwen3_5_text", (KIND.Q8_0, KIND.F32)),
        ("qwen3_5_text", (KIND.F16, KIND.Q4_1)),
        pytest.param("qwen3_5_text", (KIND.Q4_0, KIND.Q8_0), marks=pytest.mark.long),
        pytest.param("qwen3_next", (KIND.Q8_0, KIND.F32), marks=pytest.mark.long),
        pytest.param("qwen3_next", (KIND.F16, KIND.Q4_1), marks=pytest.mark.long),
    ],
)
def test_types_beside_each_other_in_a_delta_net(name, types, tmp_path):
    """Files of mixed types have q, k and v in one type, and z in another. A state carries what was rounded from token
    to token, and experts may change: 0.08 and 0.27 were measured, as many with one type for all; rows in another order
    give more than 1.
    """
    directory, path, (qkv, z) = tmp_path / "model", tmp_path / "x.gguf", types
    build(*numbers_of(name, **test_states.WIDE)).save_pretrained(directory)
    stored = {}
    for label, array in test_states.arrays_of(name, directory).items():
        kind = {"attn_qkv": qkv, "attn_gate": z, "ssm_ba": KIND.Q8_0}.get(label.split(".")[-2])
        if kind is not None:
            stored[label] = gguf.quantize(array, kind), kind
    assert len(stored) == (9 if name == "qwen3_next" else 6)
    bound = {"qwen3_5_text": 0.1, "qwen3_next": 0.4}[name]
    check(test_states.write(path, name, directory, stored, **test_states.WIDE_KEYS), bound)
    target = tmp_path / "x.packed"
    save_packed_model(open_checkpoint(path), EngineConfig(program="native", dtype="float32"), target, lambda *_: None)
    assert torch.equal(load(target).logits(TOKENS), logits(path))


def each_type():
    """Each with a tied head, whose rows are looked up as well; the other models have every third one."""
    for at, kind in enumerate(TYPES):
        for number, name in enumerate(WIDE):
            is_tried = name == "llama-wide-tied" or at % 3 == number
            yield pytest.param(
                name, kind, marks=pytest.mark.slow if is_tried else pytest.mark.long, id=f"{name}-{kind.name}"
            )


@pytest.mark.parametrize(("name", "kind"), list(each_type()))
def test_each_type(name, kind, tmp_path):
    check(write_codes(tmp_path / "x.gguf", name, [kind]))


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_a_packed_copy_has_the_bits_of_its_file(dtype, tmp_path):
    path, target = write_codes(tmp_path / "x.gguf", "mixtral-wide", TYPES), tmp_path / "x.packed"
    config = EngineConfig(program="native", dtype=dtype)
    save_packed_model(open_checkpoint(path), config, target, lambda *_: None)
    assert torch.equal(load(target).logits(TOKENS), logits(path, dtype=dtype))
