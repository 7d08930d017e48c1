"""Law 6: programs agree. The same tokens in float32; in the native program the same bits, whatever the batch and chunk.

Every build of the native kernels: tests/program/test_native.py.
"""

from functools import cache

import pytest
import torch

from tests.marks import each, needs_native
from tests.tiny_models import FAMILY_NAMES, prompt, save
from tokenmill import load

SAMPLING = {"greedy": {}, "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 3}}
PROMPTS = [prompt(length, seed=6) for length in (1, 9, 22)]
PROGRAMS = {
    "native": pytest.param({"program": "native"}, marks=needs_native, id="native"),
    "native, one step a call": pytest.param({"program": "native", "speculate": "off"}, marks=needs_native, id="steps"),
    "compiled": pytest.param({"program": "compiled", "compile": "no", "compile_phases": "both"}, id="compiled"),
}


@pytest.fixture(scope="module")
def texts(engine_of):
    """Gives what a program says, computed once for all that are compared with it."""

    @cache
    def texts(path, sampling, **program):
        engine = engine_of(path, dtype="float32", max_sequences=3, block_size=8, max_length=64, **program)
        done = engine.generate(PROMPTS, max_new_tokens=12, ignore_eos=True, **SAMPLING[sampling])
        return [each.tokens for each in done]

    return texts


@pytest.mark.parametrize("how", PROGRAMS.values())
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("family", each(FAMILY_NAMES))
def test_every_program_says_what_eager_says(family, sampling, how, models, texts):
    path = save(family, models)
    assert texts(path, sampling, **how) == texts(path, sampling, program="eager")


@needs_native
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "family",
    [
        *each(FAMILY_NAMES),
        "gemma4_text-small",
        "gemma4_text-experts",
        "gemma3n_text-departures",
        "falcon_h1-gate-first",
    ],
)
def test_the_native_program_gives_the_same_bits(family, dtype, models):
    path, settings = save(family, models), {"dtype": dtype, "program": "native", "max_length": 64}
    wanted = load(path, **settings, threads=2).logits(PROMPTS[2])
    for how in ({"max_step_tokens": 1, "threads": 1}, {"max_step_tokens": 5, "block_size": 3, "threads": 2}):
        assert torch.equal(load(path, **settings, **how).logits(PROMPTS[2]), wanted)
