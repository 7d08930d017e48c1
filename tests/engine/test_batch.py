"""Many requests at once: scores are teacher forcing, whatever is shared; results do not depend on what runs beside."""

import itertools

import pytest
import torch

import tokenmill
from tests.empty import check_empty
from tests.steps import num_fed, plans_of, poison
from tests.tiny_models import CONTEXT, VOCABULARY, prompt
from tokenmill import RequestError, load
from tokenmill.engine.batch import generate_each, score_each
from tokenmill.engine.scoring import prompt_logprobs
from tokenmill.measure.perplexity import perplexity
from tokenmill.sample.logprobs import log_probability_of, log_totals


@pytest.fixture(scope="module")
def reference(llama):
    """Logits by teacher forcing, one text at a time."""
    return tokenmill.load(llama, threads=1, program="eager")


def forced(reference, context, tail):
    """Log-probability of each token of the tail, and whether all are the largest."""
    rows_TV = reference.logits([*context, *tail])[len(context) - 1 : -1]
    logprobs_T = torch.log_softmax(rows_TV, dim=-1)[torch.arange(len(tail)), tail]
    return logprobs_T.tolist(), rows_TV.argmax(dim=-1).tolist() == list(tail)


def greedy(reference, context, count):
    return list(reference.generate(context, max_new_tokens=count, temperature=0.0, ignore_eos=True).tokens)


def pairs_of_all_kinds(reference):
    """Equal contexts and ones that begin alike; tails that are equal, begin alike, lie within others, are greedy."""
    start, long = prompt(9), prompt(70)
    said = greedy(reference, start, 6)
    tails = [said, said[:1], said[:3], [*said[:3], *prompt(4)], prompt(1), prompt(5), prompt(5), [*prompt(5), 7]]
    pairs = [(start, tail) for tail in tails]
    pairs += [(start[:1], tail) for tail in tails[:3]]
    pairs += [(long[:size], prompt(4, size)) for size in (70, 69, 33, 32)]
    pairs.append((prompt(1), prompt(CONTEXT, 8)))  # one token more than max_length, which is never fed
    return [pair for couple in zip(pairs, reversed(pairs), strict=True) for pair in couple]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_sequences": 3},
        {"max_sequences": 8, "max_step_tokens": 17},
        {"max_sequences": 4, "block_size": 4, "max_step_tokens": 16},
        {"max_sequences": 5, "block_size": 8, "cache_tokens": 136},  # sequences are preempted
        {"program": "eager", "max_sequences": 4, "block_size": 8, "prefix_cache": False},
    ],
    ids=str,
)
def test_scores_of_pairs_are_teacher_forcing(llama, reference, settings):
    pairs = pairs_of_all_kinds(reference)
    with tokenmill.load(llama, threads=1, **settings) as engine:
        scores = engine.score_pairs(pairs)
        check_empty(engine.core)
    assert any(score.is_greedy for score in scores) and not all(score.is_greedy for score in scores)
    for (context, tail), score in zip(pairs, scores, strict=True):
        if len(context) + len(tail) > CONTEXT:
            assert len(score.logprobs) == len(tail)
            continue
        expected, is_greedy = forced(reference, context, tail)
        assert list(score.logprobs) == pytest.approx(expected, abs=1e-4)
        assert score.logprob == pytest.approx(sum(expected), abs=1e-4)
        assert score.is_greedy == is_greedy


def test_shared_contexts_and_beginnings_are_computed_once(llama):
    with tokenmill.load(llama, threads=1, max_sequences=4) as engine:
        plans = plans_of(engine.core)
        start = prompt(40)
        engine.score_pairs([(start, [token]) for token in range(50)])
        assert sum(map(num_fed, plans)) == 40
        plans.clear()
        engine.score_pairs([(prompt(30), [1, 2, 3, 4]), (prompt(30), [1, 2, 3, 5]), (prompt(30), [1, 2, 9, 8, 7])])
        assert sum(map(num_fed, plans)) == 30 + 3 + 2


def test_contexts_that_begin_alike_share_blocks(llama):
    with tokenmill.load(llama, threads=1, max_sequences=1, block_size=8) as engine:
        plans = plans_of(engine.core)
        engine.score_pairs([([*prompt(64), number], [1, 2]) for number in range(3)])
        assert sum(map(num_fed, plans)) == 66 + 2 + 2


def test_greedy_is_the_lowest_id_among_equals(llama):
    with tokenmill.load(llama, threads=1) as engine:
        run = engine.core.loaded.runner.run

        def flat(plan, *more):
            plan, logits_RV = run(plan, *more)
            return plan, torch.zeros_like(logits_RV)

        engine.core.loaded.runner.run = flat
        first, other = engine.score_pairs([([5], [0, 0]), ([5], [0, 1])])
        assert first.is_greedy and not other.is_greedy
        assert other.logprob == pytest.approx(-2 * torch.tensor(float(VOCABULARY)).log().item())


def test_what_is_no_pair_is_refused(llama):
    with tokenmill.load(llama, threads=1) as engine:
        for wrong, message in [
            ("ab", "list of"),
            ([[1, 2]], "give the prompt|no prompt"),
            ([([1], [2], [3])], "no pair"),
            ([([1], [])], "empty"),
            ([([], [1])], "empty"),
            ([([1], [VOCABULARY])], "pair|out of range"),
            ([([1], [2]), (prompt(9), prompt(CONTEXT))], "136 tokens are over max_length of 128"),
        ]:
            with pytest.raises(RequestError, match=message):
                engine.score_pairs(wrong)
        assert engine.score_pairs([]) == []
        check_empty(engine.core)


def test_an_iterator_that_is_left_gives_its_blocks_back(llama):
    with tokenmill.load(llama, threads=1, max_sequences=2) as engine:
        scores = score_each(engine.core, [(prompt(5, number), prompt(3)) for number in range(5)])
        next(scores)
        scores.close()
        done = generate_each(engine.core, requests(engine, 5))
        next(done)
        done.close()
        check_empty(engine.core)


def test_logits_that_are_no_numbers_are_said(llama):
    with tokenmill.load(llama, threads=1) as engine:
        poison(engine, lambda *_: True)
        with pytest.raises(RequestError, match="dtype float32"):
            engine.score_pairs([([1], [2])])
        check_empty(engine.core)


def requests(engine, count):
    """Prompts of ragged lengths, some sampled, each with a seed of its own."""
    params = [
        engine.core.inputs.params({"max_new_tokens": 3 + number % 7, "temperature": number % 3 / 2, "seed": number})
        for number in range(count)
    ]
    return [engine.core.request(prompt(2 + number % 9, number), each) for number, each in enumerate(params)]


def test_completions_do_not_depend_on_how_many_run(llama):
    found = []
    for size, kind in itertools.product((1, 4, 16), ("auto", "off")):
        with tokenmill.load(llama, threads=1, max_sequences=size, speculate=kind) as engine:
            found.append({number: done.tokens for number, done in generate_each(engine.core, requests(engine, 20))})
            check_empty(engine.core)
    assert len(found[0]) == 20
    assert all(each == found[0] for each in found)


def test_a_token_has_one_log_probability(llama):
    """That of generate, of score, of score_pairs and of perplexity, to the last bit."""
    engine = load(llama, dtype="float32", max_length=64, threads=1)
    start = [1, 2, 3, 4]
    done = engine.generate(start, max_new_tokens=6, logprobs=0, ignore_eos=True)
    told = [entry.logprob for entry in done.logprobs]
    (pair,) = engine.score_pairs([(start, list(done.tokens))])
    assert list(pair.logprobs) == told
    assert engine.score(start, [list(done.tokens)]) == [pair.logprob]
    tokens = [*start, *done.tokens]
    (read,) = engine.score_pairs([(tokens[:1], tokens[1:])])
    assert perplexity(engine, tokens, len(tokens), len(tokens)).nll == pytest.approx(-read.logprob, rel=1e-15)


def test_a_log_probability_is_that_of_exact_sums():
    """torch's float32 log_softmax is off by 8e-6 over so many terms."""
    logits_RV = torch.randn(3, 49_152, generator=torch.Generator().manual_seed(1)) * 0.01
    ids_R = torch.tensor([5, 49_151, 77])
    exact_R = torch.log_softmax(logits_RV.double(), dim=-1)[torch.arange(3), ids_R]
    found_R = log_probability_of(logits_RV, torch.arange(3), ids_R)
    torch.testing.assert_close(found_R.double(), exact_R, rtol=1e-7, atol=0)


@pytest.mark.parametrize("settings", [{}, {"max_step_tokens": 5}, {"block_size": 4}], ids=str)
def test_log_probabilities_of_a_prompt_are_those_of_its_own_rows(settings, llama):
    """Each token but the first, by its position, with the likeliest tokens there."""
    engine, tokens = load(llama, dtype="float32", max_length=64, threads=1, **settings), prompt(23, seed=2)
    sequence, found = prompt_logprobs(engine.core, tokens, 3)
    engine.core.enqueue(sequence)
    engine.core.run_to_end(sequence)
    engine.core.release(sequence)
    logits_TV = engine.logits(tokens)
    logprobs_TV = (logits_TV.double() - log_totals(logits_TV)).float()
    assert sorted(found) == list(range(1, len(tokens)))
    for place, entry in found.items():
        row_V = logprobs_TV[place - 1]
        assert entry.logprob == row_V[tokens[place]].item()
        assert [number for number, _ in entry.top] == row_V.topk(3).indices.tolist()
        assert [value for _, value in entry.top] == row_V.topk(3).values.tolist()
        assert entry.rank == 1 + int((row_V > row_V[tokens[place]]).sum())
    check_empty(engine.core)
