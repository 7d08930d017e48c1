"""Law 5 once more: each proposer with each program, number format and batch; and frequencies of what was drafted.

Programs that read the cache through kernels of kernels/attend promise equal texts in float32 only: how many tokens one
pass feeds changes how torch rounds (README, "The promise").
"""

import math
import os
from collections import Counter
from itertools import product

import pytest

from tests.marks import needs_native
from tests.tiny_models import VOCABULARY, prompt
from tokenmill import load

NUM_PROMPTS = int(os.environ.get("TOKENMILL_PROMPTS", "8"))
PROGRAMS = {
    "native bfloat16": {"program": "native", "dtype": "bfloat16"},
    "native q4": {"program": "native", "dtype": "bfloat16", "scheme": "q4"},
    "eager float32": {"program": "eager", "dtype": "float32"},
    "compiled float32": {"program": "compiled", "compile_backend": "eager", "dtype": "float32"},
}
SLOW = ("native q4", "compiled float32")
"""Programs that differ from others in their matrices alone; no case of them notices a mutant of its own."""
PROPOSERS = {
    "suffix": {"speculate": "suffix"},
    "draft_model": {"speculate": "draft_model", "draft_model": "q8", "num_draft_tokens": 4},
    "adaptive": {"speculate": "adaptive"},
    "adaptive with a draft model": {"speculate": "adaptive", "draft_model": "q8"},
}
SAMPLING = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 11}}


def prompts():
    """Of different lengths, half of them with something that repeats."""
    ones = [prompt(3 + number % 15, seed=number) for number in range(NUM_PROMPTS)]
    return [one if number % 2 else one * 2 for number, one in enumerate(ones)]


@pytest.fixture(scope="module")
def program(request):
    return request.param


@pytest.fixture(scope="module")
def expected(program, llama):
    if program.startswith("native") and needs_native.args[0]:
        pytest.skip("no native program here")
    plain = load(llama, **PROGRAMS[program], speculate="off")
    return {
        name: [plain.generate(one, max_new_tokens=24, **sampling).tokens for one in prompts()]
        for name, sampling in SAMPLING.items()
    }


def cases():
    for program, proposer, batch in product(PROGRAMS, PROPOSERS, (1, 8)):
        yield pytest.param(program, proposer, batch, marks=pytest.mark.long if program in SLOW else ())


@pytest.mark.parametrize(("program", "proposer", "batch"), list(cases()), indirect=["program"])
def test_texts_are_those_of_plain_decoding(proposer, batch, program, expected, llama):
    engine = load(llama, **PROGRAMS[program], **PROPOSERS[proposer], max_sequences=batch)
    for name, sampling in SAMPLING.items():
        done = engine.generate(prompts(), max_new_tokens=24, **sampling)
        assert [each.tokens for each in done] == expected[name]
    assert engine.core.speculation.stats.num_drafted > 0 or "adaptive" in proposer  # which goes by what it measures


@pytest.mark.long
def test_drafted_tokens_come_as_often_as_the_model_says(llama):
    """Chi-squared over 20,000 draws of the first position that is drafted."""
    engine = load(llama, dtype="float32", speculate="draft_model", draft_model="q8", max_sequences=64, max_length=16)
    settings = {"temperature": 1.0, "max_new_tokens": 4, "n": 1000, "ignore_eos": True}
    start = prompt(5, seed=3)
    drawn = Counter(
        done.tokens[1]
        for thousand in range(20)
        for done in engine.generate(start, seed=1000 * thousand, **settings).completions
    )
    assert engine.core.speculation.stats.num_accepted > 10_000
    first_V = engine.logits(start)[-1].double().softmax(-1)
    wanted_V = sum(
        first_V[token] * engine.logits([*start, token])[-1].double().softmax(-1) for token in range(VOCABULARY)
    )
    often = [token for token in range(VOCABULARY) if 20_000 * wanted_V[token] >= 5]
    rest = 20_000 * (1 - sum(float(wanted_V[token]) for token in often))
    terms = [(drawn[token] - 20_000 * wanted_V[token]) ** 2 / (20_000 * wanted_V[token]) for token in often]
    if rest > 0:
        terms.append((20_000 - sum(drawn[token] for token in often) - rest) ** 2 / max(rest, 1.0))
    chi_squared, freedom = float(sum(terms)), len(terms) - 1
    assert chi_squared < freedom + 4 * math.sqrt(2 * freedom)
