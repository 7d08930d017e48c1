"""Texts of 40 windows of a Mistral, in a cache of three windows: the text of transformers, from blocks that are given
back, and filled with NaN as soon as they are."""

import math
from functools import cache

import pytest
import torch

from tests.empty import check_empty
from tests.integrity import check_scheduler
from tests.steps import num_fed, plans_of
from tests.tiny_models import TINY, build, prompt, reference, save
from tokenmill.cache.header import read_facts
from tokenmill.cache.snapshot import read_snapshot
from tokenmill.engine.load import load
from tokenmill.errors import CapacityError
from tokenmill.kernels.native_library import why_not

WINDOW, SIZE, LONG = 8, 4, 320
LONG_START, START = prompt(280, seed=7), prompt(200, seed=6)
PEAK = 6  # blocks: tests/schedule/test_window.py works it out
GREEDY = {"max_new_tokens": LONG - len(LONG_START), "ignore_eos": True}
PROGRAMS = {
    "eager": {"program": "eager"},
    "eager, int8": {"program": "eager", "cache_format": "int8"},
    "eager, async": {"program": "eager", "async_scheduling": "on"},
    "compiled": {"program": "compiled", "compile": "no"},
    "native": {"program": "native"},
    "native, int8": {"program": "native", "cache_format": "int8"},
    "native, drafts": {"program": "native", "speculate": "multi_step"},
    "native, draft model": {"program": "native", "speculate": "draft_model", "draft_model": "q8"},
}


@pytest.fixture(scope="module")
def path(models):
    return save("mistral-long", models)


def engine_for(path, **how):
    settings = {"dtype": "float32", "max_length": LONG, "block_size": SIZE, "max_step_tokens": 9, "threads": 1}
    return load(path, **{**settings, **how})


def poison(engine):
    """Fill every block that nobody holds with NaN, whenever a step is committed. The most blocks that were held."""
    scheduler, pool, held = engine.core.scheduler, engine.core.loaded.pool, []
    commit = scheduler.commit

    def committed(*arguments):
        held.append(scheduler.allocator.num_blocks - scheduler.allocator.num_free)
        stores = commit(*arguments)
        check_scheduler(scheduler)
        free = [block for block, count in enumerate(scheduler.allocator.references) if not count]
        slots = pool.slots_of(free, len(free) * SIZE)
        for layer in pool.layers:
            for tensor in layer.tensors:
                tensor[slots] = math.nan if tensor.is_floating_point() else -77
        return stores

    scheduler.commit = committed
    return held


@pytest.fixture(params=PROGRAMS)
def how(request):
    settings = PROGRAMS[request.param]
    if settings["program"] == "native" and why_not() is not None:
        pytest.skip(f"the library {why_not()}")
    return settings


@cache
def alone(path, program, cache_format, temperature):
    """The text in a cache of its length, computed once for settings that change no bit."""
    quiet = {"speculate": "off", "async_scheduling": "off", "cache_format": cache_format, "cache_tokens": LONG}
    engine = engine_for(path, **PROGRAMS[program], **quiet)
    return engine.generate(LONG_START, **GREEDY, temperature=temperature, seed=5).tokens


GREEDY_ALONE = ("eager, int8", "compiled", "native, int8")
"""Who draws a token, and where, is as in the program without these: `make test-long` tries it with them, too."""


@pytest.mark.parametrize(
    ("how", "temperature"),
    [
        pytest.param(
            name,
            temperature,
            id=f"{name}-{'sampled' if temperature else 'greedy'}",
            marks=pytest.mark.long if temperature and name in GREEDY_ALONE else (),
        )
        for temperature in (0.0, 0.8)
        for name in PROGRAMS
    ],
    indirect=["how"],
)
def test_a_text_of_forty_windows_from_three_windows_of_cache(path, how, temperature):
    """With steps of 9 tokens, PEAK blocks. A step in flight gives nothing back, and the next waits for that."""
    engine = engine_for(path, **how, cache_tokens=PEAK * SIZE, prefix_cache=False)
    held = poison(engine)
    done = engine.generate(LONG_START, **GREEDY, temperature=temperature, seed=5)
    assert done.tokens == alone(path, how["program"], how.get("cache_format", "dense"), temperature)
    assert len(done.tokens) == LONG - len(LONG_START) and max(held) == PEAK
    assert engine.core.scheduler.num_preemptions == 0
    check_empty(engine.core)


def test_the_text_is_that_of_transformers(path):
    """Every token is the likeliest one after those before it, all at once and without a cache."""
    engine = engine_for(path, program="eager", cache_tokens=PEAK * SIZE)
    tokens = [*LONG_START, *engine.generate(LONG_START, **GREEDY).tokens]
    with torch.no_grad():
        logits_TV = reference("mistral-long")(torch.tensor([tokens])).logits[0]
    assert tokens[len(LONG_START) :] == logits_TV[len(LONG_START) - 1 : -1].argmax(-1).tolist()


def test_the_logits_are_those_of_transformers(path, how):
    engine = engine_for(path, **how, cache_tokens=PEAK * SIZE, prefix_cache=False)
    poison(engine)
    with torch.no_grad():
        expected = reference("mistral-long")(torch.tensor([START])).logits[0]
    bound = {"atol": 0.3, "rtol": 0.3} if "cache_format" in how else {"atol": 1e-4, "rtol": 1e-4}
    torch.testing.assert_close(engine.logits(START).float(), expected, **bound)


def test_the_cache_is_made_for_the_windows(path):
    """3 sequences: (3 · (8 + 12 - 3) + 9) // 4 = 15 blocks; without a window it would be 3 · 80."""
    engine = engine_for(path, program="eager", max_sequences=3)
    config = engine.core.loaded.config
    assert config.cache_tokens == 15 * SIZE and engine.memory["cache_bytes"] == 15 * SIZE * 2 * 2 * 2 * 8 * 4
    held = poison(engine)
    engine.core.scheduler.memory.prefix_cache = False
    wanted = engine_for(path, program="eager", cache_tokens=3 * LONG, max_sequences=3, max_step_tokens=3 * LONG)
    prompts = [START[shift : shift + 150] for shift in (0, 1, 2)]
    done = engine.generate(prompts, max_new_tokens=60, ignore_eos=True)
    assert [each.tokens for each in done] == [
        each.tokens for each in wanted.generate(prompts, max_new_tokens=60, ignore_eos=True)
    ]
    assert engine.core.scheduler.num_preemptions == 0 and max(held) <= 15
    assert engine_for(path, program="eager", cache=False).core.loaded.config.cache_tokens == LONG


def test_a_text_may_be_longer_than_the_cache_and_no_longer_than_max_length(path):
    engine = engine_for(path, program="eager", cache_tokens=PEAK * SIZE)
    assert len(engine.generate(START, max_new_tokens=-1, ignore_eos=True).tokens) == LONG - len(START)
    with pytest.raises(CapacityError, match="4 needed, 3 available"):
        engine_for(path, program="eager", cache_tokens=3 * SIZE).generate(START, max_new_tokens=2)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_session_goes_back_to_before_what_was_given_back(path, temperature):
    sampling = {"temperature": temperature, "seed": 3, "ignore_eos": True}
    engine = engine_for(path, program="eager", cache_tokens=PEAK * SIZE)
    quiet = engine_for(path, program="eager", cache_tokens=2 * LONG, max_step_tokens=LONG, prefix_cache=False)
    with engine.session(START) as session:
        session.generate(max_new_tokens=20, **sampling)
        for place in (219, 212, 150, 9, 1):
            session.rewind(place)
            before = list(session.tokens)
            found = session.generate(max_new_tokens=15, **sampling).tokens
            assert found == quiet.generate(before, max_new_tokens=15, **sampling).tokens
            with session.fork() as other:
                other.edit(len(other) - 2, [5])
                before = list(other.tokens)
                found = other.generate(max_new_tokens=9, **sampling).tokens
                assert found == quiet.generate(before, max_new_tokens=9, **sampling).tokens
    check_empty(engine.core)


@pytest.mark.parametrize("sizes", [(4, 4), pytest.param((4, 16), marks=pytest.mark.long), (16, 5), (7, LONG)], ids=str)
def test_a_saved_session_has_the_rows_of_its_window_and_goes_on(path, tmp_path, sizes):
    """Of 259 rows the file has those from 251 on: a query at 258 reads them."""
    settings = {"program": "eager", "cache_tokens": 3 * LONG, "max_step_tokens": LONG}
    engine = engine_for(path, **settings, block_size=sizes[0])
    with engine.session(START) as session:
        session.generate(max_new_tokens=60, ignore_eos=True)
        size = session.save(tmp_path / "x.kv")
        facts = read_facts(tmp_path / "x.kv")
        assert (facts["first_row"], facts["num_rows"]) == (251, 259) and size < 2**15
        wanted = session.generate(max_new_tokens=30, ignore_eos=True).tokens
    other = engine_for(path, **settings, block_size=sizes[1])
    with other.open_session(tmp_path / "x.kv") as session:
        assert session.num_cached == len(session) - 1
        session.save(tmp_path / "y.kv")  # not loaded yet
        ours, theirs = (read_snapshot(tmp_path / name) for name in ("x.kv", "y.kv"))
        assert theirs.facts["first_row"] == 251 and theirs.rows.keys() == ours.rows.keys()
        assert all(torch.equal(theirs.rows[name], rows) for name, rows in ours.rows.items())
        plans = plans_of(other.core)
        assert session.generate(max_new_tokens=30, ignore_eos=True).tokens == wanted
        assert sum(map(num_fed, plans)) == 30
    for place in (260, 259, 258, 200):
        with other.open_session(tmp_path / "y.kv") as session:
            session.rewind(place)
            session.save(tmp_path / "z.kv")
            before = list(session.tokens)
            with other.open_session(tmp_path / "z.kv") as again:
                found = again.generate(max_new_tokens=9, ignore_eos=True).tokens
            assert found == session.generate(max_new_tokens=9, ignore_eos=True).tokens
            assert found == engine.generate(before, max_new_tokens=9, ignore_eos=True).tokens
    check_empty(other.core)


@pytest.mark.parametrize("block_size", [1, 2])
def test_a_window_of_one_token_may_leave_no_block(block_size, models, tmp_path):
    """A session that went back is saved and opened, though no query of it will read a row that is there."""
    build("mistral", TINY["mistral"][1] | {"sliding_window": 1}).save_pretrained(models / "one token")
    engine = engine_for(models / "one token", program="eager", block_size=block_size, max_length=64, max_sequences=2)
    emptied = 0
    for back in range(9):
        with engine.session(START[:10]) as session:
            session.generate(max_new_tokens=2, ignore_eos=True)
            session.rewind(len(session) - back)
            session.save(tmp_path / "x.kv")
            emptied += read_facts(tmp_path / "x.kv")["first_row"] == session.num_cached > 0
            with engine.open_session(tmp_path / "x.kv") as again:
                found = again.generate(max_new_tokens=4, ignore_eos=True).tokens
            assert found == engine.generate(list(session.tokens), max_new_tokens=4, ignore_eos=True).tokens
            assert found == session.generate(max_new_tokens=4, ignore_eos=True).tokens
    assert emptied
    check_empty(engine.core)


def test_a_prompt_is_found_by_the_blocks_of_its_window_also_on_disk(path, tmp_path):
    settings = {"program": "eager", "cache_tokens": PEAK * SIZE, "prefix_dir": str(tmp_path)}
    engine = engine_for(path, **settings)
    wanted = engine.generate(START, max_new_tokens=12, ignore_eos=True).tokens
    for each in (engine, engine_for(path, **settings)):
        plans = plans_of(each.core)
        assert each.generate(START, max_new_tokens=12, ignore_eos=True).tokens == wanted
        assert plans[0].work[0].start == 196  # 49 whole blocks
        assert sum(len(load.blocks) for load in plans[0].loads) <= 2  # a query at 196 reads from 189 on
