"""Streams of one prompt and of several, from threads and from asyncio; chats; the end of an engine."""

import asyncio
import gc
from functools import partial

import numpy as np
import pytest

import tokenmill
from tests.tiny_models import prompt
from tests.word_model import save_word_model
from tokenmill import CapacityError, RequestError, SamplingParams
from tokenmill.engine.outputs import Stream

TEMPLATE = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}w9"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A tiny model whose token i is the word "wi", with a chat template."""
    return save_word_model(tmp_path_factory.mktemp("models"), TEMPLATE)


@pytest.fixture
def engine(path):
    return tokenmill.load(path, max_sequences=2, block_size=8)


def used(engine):
    gc.collect()
    return engine.core.num_used_blocks


# ---- several prompts


def test_pieces_of_several_prompts_carry_the_prompts_number(engine):
    prompts = [prompt(3), prompt(9, seed=1), prompt(5, seed=2)]
    wanted = engine.generate(prompts, max_new_tokens=6)
    tokens, done = [[], [], []], [None, None, None]
    for piece in engine.stream(prompts, max_new_tokens=6):
        tokens[piece.index] += piece.tokens
        done[piece.index] = piece.done or done[piece.index]
    assert [tuple(each) for each in tokens] == [each.tokens for each in wanted]
    assert [each.hash for each in done] == [each.hash for each in wanted]


def test_several_continuations_are_numbered_as_generate_orders_them(engine):
    prompts, settings = [prompt(3), prompt(5)], {"max_new_tokens": 5, "n": 2, "temperature": 1.0, "seed": 4}
    wanted = [each.tokens for done in engine.generate(prompts, **settings) for each in done.completions]
    tokens = [[] for _ in wanted]
    for piece in engine.stream(prompts, **settings):
        tokens[piece.index] += piece.tokens
    assert [tuple(each) for each in tokens] == wanted


def test_a_stream_of_several_that_is_left_gives_everything_back(engine):
    stream = engine.stream([prompt(9), prompt(9, seed=1)], max_new_tokens=40, ignore_eos=True)
    next(stream)
    stream.close()
    assert used(engine) == 0


# ---- asyncio


def test_a_stream_can_be_read_with_async_for(engine):
    wanted = engine.generate(prompt(5), max_new_tokens=8)

    async def read(ids):
        return [token async for piece in engine.stream(ids, max_new_tokens=8) for token in piece.tokens]

    async def both():
        return await asyncio.gather(read(prompt(5)), read(prompt(5)))

    assert [tuple(each) for each in asyncio.run(both())] == [wanted.tokens] * 2


def test_a_stream_that_asyncio_leaves_early_gives_its_blocks_back(engine):
    async def leave():
        stream = engine.stream(prompt(5), max_new_tokens=40, ignore_eos=True)
        async for _ in stream:
            break
        await stream.aclose()

    asyncio.run(leave())
    assert used(engine) == 0


async def completions(core, request):
    """By index, of a request that asyncio follows."""
    return {
        piece.index: piece.done.tokens
        async for piece in Stream(core.follow(request), partial(core.cancel, request), core.thread)
        if piece.done
    }


def test_more_requests_than_run_at_a_time(engine):
    core, prompts = engine.core, [prompt(length, seed=length) for length in (4, 9, 15, 5, 6, 7, 8, 11, 12, 13)]
    wanted = [{0: engine.generate(one, max_new_tokens=8).tokens} for one in prompts]

    async def all_of_them():
        requests = [core.request(one, SamplingParams(max_new_tokens=8)) for one in prompts]
        return await asyncio.gather(*(completions(core, request) for request in requests))

    assert asyncio.run(all_of_them()) == wanted
    params = SamplingParams(max_new_tokens=4, n=3, temperature=1.0, seed=2)
    found = asyncio.run(completions(core, core.request(prompts[0], params)))
    assert [*found.values()] == [each.tokens for each in engine.generate(prompts[0], params).completions]
    assert used(engine) == 0


def test_refusals_and_errors_arrive_in_asyncio(path):
    core = tokenmill.load(path, max_waiting=4).core
    with pytest.raises(CapacityError, match="max_waiting"):
        asyncio.run(completions(core, core.request(prompt(5), SamplingParams(n=5))))
    core.loop.clock = iter(range(10**6)).__next__
    with pytest.raises(RequestError, match="deadline"):
        asyncio.run(completions(core, core.request(prompt(5), SamplingParams(), timeout_s=3)))


def test_a_stream_is_an_asynchronous_iterator_and_context(engine):
    wanted = engine.generate(prompt(5), max_new_tokens=8)

    async def read():
        async with engine.stream(prompt(5), max_new_tokens=8) as stream:
            first = await anext(stream)
            rest = [token async for piece in stream for token in piece.tokens]
            assert await anext(stream, None) is None
        return (*first.tokens, *rest)

    async def leave():
        async with engine.stream(prompt(5), max_new_tokens=40, ignore_eos=True) as stream:
            await anext(stream)
        return await anext(stream, None)

    assert asyncio.run(read()) == wanted.tokens
    assert asyncio.run(leave()) is None
    assert used(engine) == 0


def test_a_task_that_is_cancelled_ends_its_stream(engine):
    async def read(started):
        async for _ in engine.stream(prompt(5), max_new_tokens=100, ignore_eos=True):
            started.set()

    async def cancelled():
        started = asyncio.Event()
        task = asyncio.create_task(read(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert used(engine) == 0


def test_a_stream_is_a_context(engine):
    with engine.stream(prompt(5), max_new_tokens=40, ignore_eos=True) as stream:
        next(stream)
    assert used(engine) == 0


# ---- chats


def test_chat_renders_the_messages_and_answers(engine):
    messages = [{"role": "user", "content": "w5"}]
    wanted = engine.generate("user w5 w9", max_new_tokens=4)
    assert engine.chat(messages, max_new_tokens=4).tokens == wanted.tokens
    pieces = list(engine.stream_chat(messages, max_new_tokens=4))
    assert "".join(piece.text for piece in pieces) == wanted.text


def test_a_chat_that_is_no_list_of_messages_is_refused(engine):
    for wrong in ("w5", None, [], {"role": "user", "content": "w5"}, np.array([[1, 2], [3, 4]])):
        with pytest.raises(RequestError, match="give a list of messages") as caught:
            engine.chat(wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("w5", "must be an object with named values, not 'w5'"),
        ({"content": "w5"}, "has no 'role'"),
        ({"role": 5, "content": "w5"}, "role = 5 is not allowed: a text"),
        ({"role": "user"}, "has no 'content'"),
        ({"role": "user", "content": None}, "has no 'content'"),
        ({"role": "user", "content": 5}, "content = 5 is not allowed: a text"),
        ({"role": "assistant", "content": 5, "tool_calls": [{}]}, "content = 5 is not allowed: a text"),
        ({"role": "tool", "tool_call_id": "x", "content": None}, "has no 'content'"),
        ({"role": "user", "content": ["w5"]}, "part 1 must be an object"),
        ({"role": "user", "content": [{"type": "text"}]}, "part 1 has no 'text'"),
        ({"role": "assistant", "content": [{"type": "refusal", "text": "w5"}]}, "part 1 has no 'refusal'"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "type = 'image_url' is not implemented",
        ),
    ],
)
def test_a_message_that_is_none_is_named(engine, wrong, words):
    with pytest.raises(RequestError, match=f"message 2 of the chat.*{words}"):
        engine.chat([{"role": "user", "content": "w5"}, wrong])


def test_parts_of_text_are_one_text(engine):
    parts = [{"type": "text", "text": "w5"}, {"type": "text", "text": "w6"}]
    assert engine.chat_prompt([{"role": "user", "content": parts}]) == engine.chat_prompt(
        [{"role": "user", "content": "w5\nw6"}]
    )


def test_a_message_may_be_long(engine):
    assert engine.chat_prompt([{"role": "user", "content": "w5 " * 10_000}])


ASK, ANSWER = {"role": "user", "content": "w5"}, {"role": "assistant"}
EMPTY = [{}, {"content": None}, {"content": []}, {"content": ""}, {"content": None, "name": None, "tool_calls": None}]
EMPTY += [{"content": None, "tool_calls": [{"id": "x"}]}, {"tool_calls": [{"id": "x"}]}, {"function_call": None}]


@pytest.mark.parametrize("more", EMPTY, ids=str)
def test_an_answer_without_content_is_an_empty_one(engine, more):
    assert engine.chat_prompt([ASK, ANSWER | more]) == engine.chat_prompt([ASK, ANSWER | {"content": ""}])


def test_a_refusal_is_a_part_of_a_message(engine):
    parts = [{"type": "refusal", "refusal": "w6"}, {"type": "text", "text": "w7"}]
    wanted = engine.chat_prompt([ASK, ANSWER | {"content": "w6\nw7"}])
    assert engine.chat_prompt([ASK, ANSWER | {"content": parts}]) == wanted


def test_a_variable_that_the_template_does_not_read_is_named(engine, caplog):
    engine.chat_prompt([ASK], add_generation_prompt=False, enable_thinking=False, tools=None)
    assert [record.message for record in caplog.records] == [
        "this model's chat template does not read 'enable_thinking', so it changes nothing"
    ]


# ---- the end


def test_a_closed_engine_refuses_and_holds_nothing(path):
    with tokenmill.load(path) as engine:
        session = engine.session(prompt(5))
        stream = engine.stream(prompt(5), max_new_tokens=40, ignore_eos=True)
        next(stream)
    with pytest.raises(RequestError, match="closed"):
        engine.generate(prompt(5))
    with pytest.raises(RequestError, match="closed"):
        session.generate()
    with pytest.raises(RequestError, match="closed"):
        list(stream)
    engine.close()  # a second time is no error
    session.close()


def test_what_is_printed_names_the_thing(engine, path):
    assert repr(engine).startswith(f"<tokenmill.Engine {path}")
    assert "float32" in repr(engine)
    session = engine.session(prompt(5))
    assert repr(session) == "<tokenmill.Session 5 tokens, 0 computed>"
    session.close()
    assert repr(session) == "<tokenmill.Session closed>"
    stream = engine.stream(prompt(5), max_new_tokens=4)
    assert repr(stream) == "<tokenmill.Stream open>"
    list(stream)
    assert repr(stream) == "<tokenmill.Stream ended>"
    done = engine.generate("w5", max_new_tokens=4)
    assert repr(done).startswith(f"<tokenmill.Completion {done.text!r}")
    assert len(repr(done)) < 200
    engine.close()
    assert repr(engine).endswith("float32, closed>")
