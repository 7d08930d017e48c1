"""Beam search: the texts and the scores of transformers' generate with num_beams."""

import shutil
from functools import cache

import pytest
import torch

from tests.empty import check_empty
from tests.peft_adapters import save_adapter
from tests.tiny_models import prompt, reference, save
from tokenmill import ConfigError, RequestError, load
from tokenmill.engine.beam import NOTHING, Search

FAMILIES = ["llama", "gpt2", "mixtral", "gemma3_text", "lfm2"]
STOPPING = {"heuristic": False, "full": True, "never": "never"}


@cache
def expected(model, tokens, width, new, ends, penalty=1.0, stopping="heuristic"):
    """The new tokens, without what is padded, and the score of each text. Every program is compared with the same."""
    with torch.no_grad():
        found = model.generate(
            torch.tensor([tokens]), num_beams=width, num_return_sequences=width, max_new_tokens=new, do_sample=False,
            length_penalty=penalty, early_stopping=STOPPING[stopping], eos_token_id=list(ends) or None, pad_token_id=0,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    texts = []
    for ids, parents in zip(found.sequences.tolist(), found.beam_indices.tolist(), strict=True):
        length = sum(parent >= 0 for parent in parents)
        texts.append(tuple(ids[len(tokens) : len(tokens) + length]))
    return texts, found.sequences_scores.tolist()


def same(engine, model, tokens, width, new, ends, **how):
    settings = how.get("length_penalty", 1.0), how.get("stopping", "heuristic")
    texts, scores = expected(model, tuple(tokens), width, new, tuple(ends), *settings)
    found = engine.beam(tokens, width, max_new_tokens=new, ignore_eos=True, stop_token_ids=ends, **how)
    assert [beam.tokens for beam in found] == texts
    assert [beam.score for beam in found] == pytest.approx(scores, rel=1e-6, abs=2e-5)
    return found


@pytest.mark.parametrize("program", ["eager", "native"])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_scores_are_those_of_transformers(family, program, models):
    """With tokens that end a text, in the midst of a search; with room for fewer texts than beams."""
    how = {"dtype": "float32", "program": program, "scheme": "dense", "block_size": 4, "max_sequences": 3}
    with load(save(family, models), **how) as engine:
        for width, new, length in ((2, 9, 11), (5, 12, 3)):
            tokens = prompt(length, seed=width)
            ends = sorted({beam.tokens[3] for beam in engine.beam(tokens, width, max_new_tokens=new, ignore_eos=True)})
            same(engine, reference(family), tokens, width, new, [])
            same(engine, reference(family), tokens, width, new, ends[:2])
        check_empty(engine.core)


@pytest.fixture(scope="module")
def ends_of(engine_of, models):
    """Gives the engine for all penalties, a prompt, and tokens that end its beams in the midst of a search."""
    settings = {"dtype": "float32", "program": "eager", "scheme": "dense", "max_sequences": 4}

    @cache
    def find(seed):
        engine, tokens = engine_of(save("llama", models), **settings), prompt(6, seed=seed)
        plain = engine.beam(tokens, 4, max_new_tokens=10, ignore_eos=True)
        return engine, tokens, sorted({beam.tokens[at] for beam, at in zip(plain, (1, 3, 5, 7), strict=True)})

    return find


@pytest.mark.parametrize("seeds", [(0, 1), pytest.param((2, 3), marks=pytest.mark.long)], ids=str)
@pytest.mark.parametrize("stopping", STOPPING)
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_length_penalties_and_ways_to_stop(penalty, stopping, seeds, ends_of):
    for seed in seeds:
        engine, tokens, ends = ends_of(seed)
        same(engine, reference("llama"), tokens, 4, 10, ends, length_penalty=penalty, stopping=stopping)
    check_empty(engine.core)


def test_a_beam_of_one_is_greedy(models):
    with load(save("llama", models), program="native") as engine:
        (beam,) = engine.beam(prompt(9), 1, max_new_tokens=12, ignore_eos=True)
        assert beam.tokens == engine.generate(prompt(9), max_new_tokens=12, ignore_eos=True).tokens


def test_the_first_text_is_never_less_likely_than_a_greedy_one(models):
    with load(save("llama", models), dtype="float32", program="native") as engine:
        greedy = engine.generate(prompt(9), max_new_tokens=8, ignore_eos=True).tokens
        best = engine.beam(prompt(9), 6, max_new_tokens=8, ignore_eos=True)[0]
        own, other = engine.score(prompt(9), [list(best.tokens), list(greedy)])
        assert own >= other and best.score == pytest.approx(own / 8, abs=1e-4)


def test_forks_share_rows(models, monkeypatch):
    """A step computes one token for each beam, and the prompt once."""
    with load(save("llama", models), program="native", block_size=4, max_sequences=4, prefix_cache=False) as engine:
        fed, run = [], engine.core.loaded.program.run

        def counted(step):
            fed.append(len(step.token_ids))
            return run(step)

        monkeypatch.setattr(engine.core.loaded.program, "run", counted)
        engine.beam(prompt(17), 4, max_new_tokens=6, ignore_eos=True)
        assert fed == [17, 4, 4, 4, 4, 4]
        check_empty(engine.core)


def test_scarce_blocks_change_no_text(models):
    """Blocks of beams that wait are taken, and their rows computed again."""
    with load(save("llama", models), dtype="float32", max_sequences=4) as quiet:
        texts = [beam.tokens for beam in quiet.beam(prompt(20), 4, max_new_tokens=14, ignore_eos=True)]
    how = {"block_size": 4, "cache_tokens": 48, "max_sequences": 2, "max_length": 40, "max_step_tokens": 7}
    with load(save("llama", models), dtype="float32", **how) as engine:
        assert [beam.tokens for beam in engine.beam(prompt(20), 4, max_new_tokens=14, ignore_eos=True)] == texts
        check_empty(engine.core)


def test_with_an_adapter(models, tmp_path):
    peft = save_adapter("llama", tmp_path / "a")
    with load(save("llama", models), dtype="float32", program="eager", scheme="dense") as engine:
        engine.load_adapter("a", tmp_path / "a")
        same(engine, peft, prompt(8), 3, 8, [], adapter="a")


@pytest.fixture(scope="module")
def refusing(engine_of, models):
    """The engine of what is refused, which is empty after all of it."""
    engine = engine_of(save("llama", models), program="eager")
    yield engine
    check_empty(engine.core)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"width": 0}, "width"),
        ({"width": 1000}, "width"),
        ({"width": 2.5}, "width"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"stopping": "soon"}, "stopping"),
        ({"repetition_penalty": 1.3}, "repetition_penalty is nothing that a beam search reads"),
        ({"n": 5}, "n is nothing that a beam search reads"),
        ({"regex": "a+"}, "regex"),
        ({"max_new_tokens": 1000}, "max_length"),
    ],
)
def test_what_is_refused(given, said, refusing):
    with pytest.raises((ConfigError, RequestError), match=said):
        refusing.beam(prompt(5), **({"max_new_tokens": 4} | given))


def test_an_interrupt_leaves_nothing_behind(models):
    from tests.interrupts import lines

    with load(save("llama", models), program="eager", max_sequences=3) as engine:
        wanted = [beam.tokens for beam in engine.beam(prompt(7), 3, max_new_tokens=5, ignore_eos=True)]
        for at in range(1, 2000, 97):
            try:
                with lines(at):
                    engine.beam(prompt(7), 3, max_new_tokens=5, ignore_eos=True)
            except KeyboardInterrupt:
                pass
            assert [beam.tokens for beam in engine.beam(prompt(7), 3, max_new_tokens=5, ignore_eos=True)] == wanted
        check_empty(engine.core)


def test_fewer_texts_than_beams_where_few_are_possible():
    """A vocabulary of two tokens, one of which ends the text."""
    search = Search(4, 2, frozenset({1}), 1.0, "heuristic")
    parents = search.step(torch.tensor([[0.0, 0.0]]))
    assert parents == [0] and len(search.found) == 1 and not search.is_over
    search.step(torch.tensor([[0.0, 0.0]]))
    assert search.is_over and {tokens for tokens, _ in search.found} == {(1,), (0, 0), (0, 1)}


@pytest.mark.parametrize("length_penalty", [-100, -5.0, 100])
def test_any_penalty_gives_texts(length_penalty, models):
    """Also where a power of the length is no number of 64 bits, or scores fall below the one that stands for none,
    which 30 tokens take for a penalty of -5.
    """
    new = 32 if length_penalty == -5.0 else 9
    with load(save("llama", models), program="eager", max_length=60) as engine:
        for stopping in ("heuristic", "never"):
            how = {"length_penalty": length_penalty, "stopping": stopping, "ignore_eos": True, "max_new_tokens": new}
            found = engine.beam(prompt(5), 3, **how)
            assert len(found) == 3 and (found[-1].score < NOTHING) == (length_penalty < 0)
    search = Search(2, 5000, frozenset({1}), length_penalty, "never", beams=[((0,) * 4000, -3000.0)])
    search.step(torch.tensor([[0.0, 0.0]]))
    assert len(search.found) == 1


def test_settings_that_say_nothing_are_passed_over(models, tmp_path):
    """A temperature and a seed, and what a model's own files recommend."""
    whole = tmp_path / "model"
    shutil.copytree(save("llama", models), whole)
    (whole / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_k": 5, "eos_token_id": 1}'
    )
    with load(whole, program="eager", generation_config=True) as engine:
        wanted = [beam.tokens for beam in engine.beam(prompt(5), 3, max_new_tokens=4)]
        for more in ({"temperature": 0.7}, {"temperature": 0.7, "seed": 3}):
            assert [beam.tokens for beam in engine.beam(prompt(5), 3, max_new_tokens=4, **more)] == wanted
