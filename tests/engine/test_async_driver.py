"""Requests from asyncio: several at a time, left early, refused, closed."""

import asyncio

import pytest

from tests.empty import check_empty
from tests.tiny_models import prompt
from tokenmill import CapacityError, RequestError, SamplingParams, load
from tokenmill.engine.async_driver import AsyncDriver

PROMPTS = [prompt(length, seed=length) for length in (4, 9, 15)]
PARAMS = SamplingParams(max_new_tokens=8, ignore_eos=True)


@pytest.fixture
def driver(llama):
    engine = load(llama, dtype="float32", block_size=4, max_sequences=2, max_waiting=4, max_length=64)
    driver = AsyncDriver(engine.core)
    driver.engine = engine
    yield driver
    driver.close()
    check_empty(engine.core)


async def tokens_of(driver, one, params=PARAMS):
    pieces = [piece async for piece in driver.stream(driver.engine.core.request(one, params))]
    return {piece.index: piece.done.tokens for piece in pieces if piece.done}


def test_several_at_a_time_are_each_alone(driver, llama):
    async def all_of_them():
        return await asyncio.gather(*(tokens_of(driver, one) for one in PROMPTS))

    alone = load(llama, dtype="float32", max_length=64)
    wanted = [{0: alone.generate(one, max_new_tokens=8, ignore_eos=True).tokens} for one in PROMPTS]
    assert asyncio.run(all_of_them()) == wanted
    assert asyncio.run(all_of_them()) == wanted  # another event loop


def test_several_continuations(driver):
    params = SamplingParams(max_new_tokens=4, n=3, temperature=1.0, seed=2)
    found = asyncio.run(tokens_of(driver, PROMPTS[0], params))
    done = driver.engine.generate(PROMPTS[0], max_new_tokens=4, n=3, temperature=1.0, seed=2)
    assert found == dict(enumerate(each.tokens for each in done))


def test_left_early_it_is_cancelled(driver):
    async def first_piece():
        stream = driver.stream(driver.engine.core.request(PROMPTS[1], SamplingParams(max_new_tokens=40)))
        piece = await anext(stream)
        await stream.aclose()
        return piece

    assert asyncio.run(first_piece()).tokens
    asyncio.run(tokens_of(driver, PROMPTS[0]))  # served by the same thread behind the cancellation


def test_refusals_and_errors_arrive(driver):
    with pytest.raises(CapacityError, match="max_waiting"):
        asyncio.run(tokens_of(driver, PROMPTS[0], SamplingParams(n=5)))
    driver.engine.core.clock = iter(range(10**6)).__next__

    async def late():
        async for _ in driver.stream(driver.engine.core.request(PROMPTS[0], PARAMS, timeout_s=3)):
            pass

    with pytest.raises(RequestError, match="deadline"):
        asyncio.run(late())


def test_closed_it_takes_nothing(driver):
    asyncio.run(tokens_of(driver, PROMPTS[0]))
    driver.close()
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(tokens_of(driver, PROMPTS[0]))
