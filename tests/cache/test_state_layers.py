"""Layers that keep a state: laws 2 to 7 on a tiny model whose arithmetic is written out."""

import pytest
import torch

from tests.integrity import check_scheduler
from tests.state_model import KV_HEADS, LAYERS, SUMS, WIDTH, save_with_states, written_out
from tests.tiny_models import VOCABULARY, prompt
from tokenmill.engine.load import load
from tokenmill.engine.loop import Observer
from tokenmill.errors import ConfigError
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.speculate.proposer import Proposer

START = prompt(29, seed=4)
PROMPTS = [prompt(length, seed=3) for length in (1, 5, 8, 13, 16, 17, 30, 41)]
SAMPLING = {"greedy": {}, "sampled": {"temperature": 0.8, "top_k": 40, "seed": 11}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield save_with_states(tmp_path_factory.mktemp("states") / "summing", patch)


def summing(path, **settings):
    return load(path, max_length=64, program="eager", scheme="dense", **settings)


@pytest.fixture(scope="module", params=SAMPLING)
def sampling(request):
    return {"max_new_tokens": 14, "ignore_eos": True, **SAMPLING[request.param]}


@pytest.fixture(scope="module")
def singles(path, sampling):
    engine = summing(path, prefix_cache=False)
    return [engine.generate(each, **sampling).tokens for each in PROMPTS]


@pytest.mark.parametrize(
    "how", [{}, {"cache": False}, {"block_size": 1}, {"block_size": 3, "max_step_tokens": 5}], ids=str
)
def test_the_text_is_that_of_the_arithmetic(path, how):
    engine = summing(path, **how)
    torch.testing.assert_close(engine.logits(START), written_out(START), atol=2e-4, rtol=1e-4)
    tokens = list(START)
    for token in engine.generate(START, max_new_tokens=20, ignore_eos=True).tokens:
        assert token == written_out(tokens)[-1].argmax()
        tokens.append(token)


@pytest.mark.parametrize(
    "how",
    [
        {"max_step_tokens": 8},
        {"cache": False, "max_step_tokens": 512},
        {"block_size": 1},
        {"block_size": 3, "prefix_cache": False},
        {"block_size": 16, "async_scheduling": "on"},
        {"block_size": 4, "max_step_tokens": 11, "cache_tokens": 80},
        {"block_size": 4, "speculate": "adaptive"},
        {"block_size": 4, "speculate": "suffix", "cache_tokens": 80},
    ],
    ids=str,
)
def test_any_batch_chunk_block_and_draft(path, how, sampling, singles):
    engine = summing(path, max_sequences=8, **how)
    for prompts, wanted in ((PROMPTS, singles), (PROMPTS[::-1], singles[::-1])):
        assert [each.tokens for each in engine.generate(prompts, **sampling)] == wanted
        scheduler = engine.core.scheduler
        check_scheduler(scheduler)
        for kind in scheduler.memory.kinds:
            assert kind.allocator.num_free == kind.allocator.num_blocks, "a block was leaked"


def said(engine, tokens, sampling):
    """The text, and how many tokens of the prompt were found in the cache."""
    request = engine.core.request(tokens, SamplingParams(**sampling))
    (done,) = engine.core.finish([request])
    return done.tokens, request.sequences[0].num_cached_tokens


def test_a_later_text_finds_the_state_where_a_block_ends(path, sampling, tmp_path):
    engine = summing(path, block_size=4, prefix_dir=str(tmp_path / "blocks"))
    tokens, cached = said(engine, START, sampling)
    assert cached == 0 and said(engine, START, sampling) == (tokens, 20)  # a block before the end of the prompt
    assert said(engine, START, sampling) == (tokens, 28)  # where the second prompt was equal to the first
    assert said(engine, [*START, *tokens[:9]], sampling)[1] == 36  # steps of one token have ended at each block
    later = summing(path, block_size=4, prefix_dir=str(tmp_path / "blocks"))  # from disk
    assert said(later, START, sampling) == (tokens, 28)


def test_a_session_is_forked_rewound_saved_and_opened(path, sampling, tmp_path):
    engine = summing(path, block_size=4, max_sequences=2)
    wanted = engine.generate(START, **sampling).tokens
    with engine.session(START) as session, session.fork() as other:
        begun = session.generate(**sampling | {"max_new_tokens": 9}).tokens
        session.save(tmp_path / "x.kv")
        assert other.generate(**sampling).tokens == wanted
        other.rewind(len(START) + 6)
        assert other.generate(**sampling | {"max_new_tokens": 5}).tokens == session_from(engine, other, 6, sampling)
    with summing(path, block_size=4).open_session(tmp_path / "x.kv") as session:
        assert session.num_cached == len(START) + 8 and begun == wanted[:9]
        assert begun + session.generate(**sampling | {"max_new_tokens": 5}).tokens == wanted


def session_from(engine, other, num_kept, sampling):
    """What a text says that begins as this session does, and was never rewound."""
    tokens = list(other.tokens[: len(START) + num_kept])
    with engine.session(tokens[: len(START)]) as fresh:
        fresh.append(tokens[len(START) :])
        return fresh.generate(params=other.params, max_new_tokens=5, ignore_eos=True).tokens


def test_its_bytes_are_the_sum_of_its_layers(path):
    engine = summing(path, block_size=4, max_sequences=3)
    spec = engine.core.loaded.pool.spec
    rows, states = 2 * 4 * KV_HEADS * WIDTH * LAYERS // 2, 4 * (SUMS + 1) * LAYERS // 2
    assert (spec.bytes_per_token, spec.bytes_per_state, spec.num_states) == (
        rows,
        states,
        6 + 7 + 48,
    )  # two of each text, those of drafts, and as many as there are blocks
    assert engine.memory["cache_bytes"] == spec.num_bytes == rows * spec.num_slots + states * 61
    shape = engine.core.loaded.compatibility["shape"]
    assert shape["num_layers"] == LAYERS and [number for number, *_ in shape["states"]] == [0, 2]


@pytest.mark.parametrize("settings", [{"program": "native"}, {"program": "compiled"}, {"tensor_parallel": 2}], ids=str)
def test_what_does_not_know_the_layer_refuses_it(path, settings):
    with pytest.raises(ConfigError, match=r"does not (compute running_sum.*the mixer of layer 0|divide running_sum)"):
        load(path, max_length=64, **{"program": "eager", **settings})


class Half(Proposer):
    """Guesses seven tokens, of which the first three are right."""

    def __init__(self, texts):
        self.texts, self.num_draft_tokens = texts, 0

    def propose(self, sequences, limit, forced):
        guesses = {}
        for sequence in sequences:
            text, done = self.texts[tuple(sequence.tokens[: sequence.num_prompt_tokens])], len(sequence.tokens)
            done -= sequence.num_prompt_tokens
            truth = text[done : done + min(limit, 7)]
            guesses[sequence.id] = [(t + (i >= 3)) % VOCABULARY for i, t in enumerate(truth)]
            self.num_draft_tokens += len(truth)
        return guesses


class Works(Observer):
    """Keeps what each step was planned to do."""

    def __init__(self):
        self.found = []

    def phase(self, name, plan):
        if name == "plan" and plan is not None:
            self.found += plan.work


def test_a_rejected_draft_costs_nothing_that_is_computed_again(path, sampling, singles):
    """Each step feeds the last token and its drafts, and never a token that an earlier step has accepted."""
    engine = summing(path, max_sequences=1, block_size=64, speculate="suffix", num_draft_tokens=7)
    engine.core.speculation.proposer = Half({tuple(p): text for p, text in zip(PROMPTS, singles, strict=True)})
    works = Works()
    with engine.core.observed_by(works):
        assert [engine.generate(p, **sampling).tokens for p in PROMPTS] == singles
    decoding = [work for work in works.found if work.start]
    assert max(len(work.drafts) for work in decoding) == 7
    assert all(work.count == 1 + len(work.drafts) for work in decoding)
