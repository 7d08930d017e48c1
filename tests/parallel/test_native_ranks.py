"""Program native in several ranks: the bits of one rank, whatever the model, its numbers and their division."""

import pytest
import torch

from tests.marks import crossed
from tests.parallel.ranks_in_threads import RanksInThreads
from tests.tiny_models import KINDS, prompt, save
from tokenmill import load
from tokenmill.kernels import native_library
from tokenmill.loader import load_model

LONG = prompt(97, seed=5)
FORMS = ["float32 dense", "bfloat16 dense", "float16 dense", "float32 q8", "bfloat16 q4"]
PLAIN = ["llama", "gpt2", "qwen3", "mixtral"]

pytestmark = pytest.mark.skipif(native_library.why_not() is not None, reason=f"the library {native_library.why_not()}")


@pytest.fixture(autouse=True)
def in_threads(monkeypatch):
    monkeypatch.setattr(load_model, "OtherRanks", RanksInThreads)


def native(path, dtype="float32", **settings):
    return load(path, program="native", dtype=dtype, **{"threads": 1, **settings})


@pytest.mark.parametrize(("family", "form"), crossed(KINDS, FORMS, ["bfloat16 q4"]))
def test_the_same_bits_with_any_number_of_ranks(family, form, models):
    path, (dtype, scheme) = save(family, models), form.split()
    one = native(path, dtype, scheme=scheme)
    whole = one.logits(LONG)
    for count in (2, 3):
        ranks = native(path, dtype, scheme=scheme, tensor_parallel=count)
        assert torch.equal(ranks.logits(LONG), whole), count
        assert torch.equal(ranks.logits(LONG[:9]), whole[:9]), count  # a small step
        ranks.close()
    one.close()


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel": 2, "threads": 2},
        {"tensor_parallel": 5},
        {"tensor_parallel": 2, "block_size": 3, "max_step_tokens": 20},
        {"tensor_parallel": 3, "max_step_tokens": 1},
        {"tensor_parallel": 2, "cache_format": "int8"},
    ],
)
def test_the_same_bits_for_any_chunk_thread_and_block(family, settings, models):
    path = save(family, models)
    whole = native(path, cache_format=settings.get("cache_format", "dense")).logits(LONG)
    ranks = native(path, **settings)
    assert torch.equal(ranks.logits(LONG), whole)
    ranks.close()
