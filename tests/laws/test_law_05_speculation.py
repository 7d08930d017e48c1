"""Law 5: drafts that always, never or sometimes agree leave the text as it is: greedy, sampled, alone, in batches."""

from functools import cache
from itertools import product

import pytest

from tests.integrity import check_scheduler
from tests.marks import QUICK_FAMILIES
from tests.tiny_models import FAMILY_NAMES, HYBRIDS, KINDS, UNLIKE, VOCABULARY, prompt, save
from tokenmill import load
from tokenmill.measure.recorder import record
from tokenmill.speculate.proposer import Proposer

SAMPLING = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    "penalties": {"temperature": 0.7, "seed": 6, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "logprobs": 1},
}
PROMPTS = [prompt(length, seed=8) for length in (4, 9, 17)]
NEW = 15


class Oracle(Proposer):
    """Knows the text to come and tells the truth in some places only."""

    def __init__(self, texts: dict[tuple[int, ...], tuple[int, ...]], lies) -> None:
        self.texts, self.lies, self.num_draft_tokens = texts, lies, 0

    def propose(self, sequences, limit, forced):
        guesses = {}
        for sequence in sequences:
            start = sequence.num_prompt_tokens
            text = self.texts[tuple(sequence.tokens[:start])]
            done = len(sequence.tokens) - start
            truth = text[done : done + limit]
            guess = [(t + 1) % VOCABULARY if self.lies(done + i) else t for i, t in enumerate(truth)]
            self.num_draft_tokens += len(guess)
            guesses[sequence.id] = guess
        return guesses


@pytest.fixture(scope="module")
def expected_of(models):
    """Gives what a family writes without drafts, computed once for all kinds of drafts."""

    @cache
    def expected(family, sampling):
        with load(save(family, models), dtype="float32") as plain:
            return [plain.generate(p, max_new_tokens=NEW, **SAMPLING[sampling]) for p in PROMPTS]

    return expected


LIES = {"no": lambda p: False, "all": lambda p: True, "some": lambda p: p % 3 == 2}


def cases():
    """Every family with drafts of which some agree, those with states with all, too; the sampler sees no family."""
    for family, sampling, lies in product(FAMILY_NAMES, SAMPLING, LIES):
        is_default = sampling == "greedy" and (family in HYBRIDS or (family in (*KINDS, *UNLIKE) and lies == "some"))
        marks = () if is_default or family in QUICK_FAMILIES else pytest.mark.long
        yield pytest.param(family, sampling, LIES[lies], marks=marks, id=f"{family}-{sampling}-{lies}")


@pytest.mark.parametrize(("family", "sampling", "lies"), list(cases()))
def test_drafts_do_not_change_the_text(family, sampling, lies, models, expected_of):
    settings = {"max_new_tokens": NEW, **SAMPLING[sampling]}
    path, expected = save(family, models), expected_of(family, sampling)
    for shape in ({}, {"block_size": 4, "max_sequences": 3, "max_step_tokens": 10}):
        engine = load(path, dtype="float32", num_draft_tokens=4, **shape)
        engine.core.speculation.proposer = Oracle(
            {tuple(p): d.tokens for p, d in zip(PROMPTS, expected, strict=True)}, lies
        )
        done = engine.generate(PROMPTS, **settings)
        assert [d.tokens for d in done] == [d.tokens for d in expected]
        assert engine.core.speculation.proposer.num_draft_tokens > 0
        for ours, theirs in zip(done, expected, strict=True):
            # Float32 rounding of a chunk of several rows against single rows.
            assert [e.logprob for e in ours.logprobs or ()] == pytest.approx(
                [e.logprob for e in theirs.logprobs or ()], abs=1e-5
            )
        check_scheduler(engine.core.scheduler)
        assert engine.core.scheduler.idle


def test_drafts_that_agree_save_steps(models):
    path = save("llama", models)
    text = load(path, dtype="float32").generate(PROMPTS[0], max_new_tokens=NEW).tokens
    engine = load(path, dtype="float32", num_draft_tokens=4)
    engine.core.speculation.proposer = Oracle({tuple(PROMPTS[0]): text}, lambda p: False)
    with record(engine) as recorder:
        assert engine.generate(PROMPTS[0], max_new_tokens=NEW).tokens == text
    assert len(recorder.steps) == 4  # the prompt, then five tokens a step: four drafts and the one that follows them
