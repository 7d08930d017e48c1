"""Adapters that clients load into the memory of several models: what is counted, who waits, and who goes."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tests.peft_adapters import save_adapter
from tests.serve.loop.test_driver import Gate
from tests.serve.models.conftest import MODEL_BYTES, PROMPTS, loaded, several
from tests.serve.models.test_residents import played, quiet, stage, use
from tests.serve.models.test_router import complete, text_of, until
from tokenmill.errors import CheckpointError
from tokenmill.serve.facts import adapters as adapters_module
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.models.hosted import LOADING, ComingAdapter


async def bring(made, name, adapter="mine", ends=None, num_bytes=1, held_bytes=None):
    """Uses a model to load an adapter, until an event. held_bytes: what it takes in memory."""
    async with made.residents.using(made[name], adapter=ComingAdapter(adapter, num_bytes)) as served:
        made.happened.append(f"{adapter} of {name}")
        if ends is not None:
            await ends.wait()
        own = SimpleNamespace(path=f"/{adapter}", num_bytes=num_bytes if held_bytes is None else held_bytes)
        served.engine = SimpleNamespace(adapters={**served.engine.adapters, adapter: own})


def within(made, play):
    """Runs a play, and looks between any two moves of the event loop whether more memory is used than there is."""

    async def watched(made):
        watching = asyncio.create_task(watch())
        try:
            await play(made)
        finally:
            watching.cancel()
            (found,) = await asyncio.gather(watching, return_exceptions=True)
        assert isinstance(found, asyncio.CancelledError), found

    async def watch():
        while True:
            assert made.residents.used_bytes <= made.residents.room_bytes, made.happened
            await asyncio.sleep(0)

    return played(made, watched)


def test_an_adapter_waits_until_a_text_of_another_model_has_ended():
    async def play(made):
        ends, loads = asyncio.Event(), asyncio.Event()
        answers = asyncio.create_task(use(made, "b", ends))
        await quiet(made)
        await use(made, "a")
        bringing = asyncio.create_task(bring(made, "a", ends=loads))
        await quiet(made)
        assert made["b"].is_leaving and not made["a"].users and not made["a"].coming
        await use(made, "a")  # its own texts go on
        ends.set()
        await answers
        await quiet(made)
        assert made.happened[-2:] == ["b-", "mine of a"] and made.residents.used_bytes == 2
        waits = asyncio.create_task(use(made, "b"))
        await quiet(made)
        assert not waits.done(), "an adapter that is read is counted"
        loads.set()
        await asyncio.gather(bringing, waits)
        assert made.loaded == "b"

    assert within(stage(), play) == ["b+", "a+", "b-", "mine of a", "a-", "b+"]


@pytest.mark.parametrize("are_loaded", [False, True])
def test_two_adapters_that_need_the_room_of_each_others_model(are_loaded):
    async def play(made):
        if are_loaded:
            await use(made, "a")
            await use(made, "b")
        ends = asyncio.Event()
        both = [asyncio.create_task(bring(made, name, f"for-{name}", ends)) for name in "ab"]
        await quiet(made)
        assert made.happened[-1] == "for-a of a"
        ends.set()
        await asyncio.gather(*both)
        assert made.loaded == "b" and made.residents.used_bytes == 2

    found = within(stage(), play)
    assert [each for each in found if " " in each] == ["for-a of a", "for-b of b"]


def test_models_and_adapters_have_one_queue():
    """Each adapter waits for its own turn, so that many adapters of one model let others through."""

    async def play(made):
        await use(made, "a")
        ends, asked = asyncio.Event(), [lambda: bring(made, "a", "first", ends), lambda: bring(made, "a", "second")]
        tasks = [asyncio.create_task(ask()) for ask in (*asked, lambda: use(made, "b"))]
        await quiet(made)
        assert made.happened == ["a+", "first of a"]
        ends.set()
        await asyncio.gather(*tasks)

    assert within(stage(room=3, a=1, b=2), play) == ["a+", "first of a", "a-", "b+", "a+", "b-", "second of a"]


def test_a_request_that_leaves_while_its_adapter_waits():
    """Nothing of it is counted, and who comes after it is served."""

    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "b", ends))
        await quiet(made)
        await use(made, "a")
        gone, other = (asyncio.create_task(bring(made, "a", name)) for name in ("gone", "other"))
        await quiet(made)
        gone.cancel()
        await asyncio.wait({gone})
        ends.set()
        await asyncio.gather(answers, other)
        await use(made, "c", None)
        assert not any(each.users or each.coming or each.waiters for each in made.residents.all)

    assert within(stage(room=2), play) == ["b+", "a+", "b-", "other of a", "a-", "c+"]


def test_a_request_that_leaves_as_its_adapter_is_admitted():
    async def play(made):
        await use(made, "a")
        bringing = asyncio.create_task(bring(made, "a"))
        while not made["a"].coming:
            await asyncio.sleep(0)
        bringing.cancel()
        await asyncio.wait({bringing})
        assert not made["a"].users and not made["a"].coming and made.residents.used_bytes == 1

    assert within(stage(), play) == ["a+"]


def test_a_model_that_cannot_be_loaded_for_an_adapter():
    async def play(made):
        await use(made, "b")
        for _ in range(2):
            with pytest.raises(ApiError, match="the model 'a' cannot be loaded"):
                await bring(made, "a")
        await bring(made, "b")
        assert not made["a"].waiters and made.residents.used_bytes == 2

    assert within(stage(refuses={"a": CheckpointError("damaged")}), play) == ["b+", "mine of b"]


def test_an_adapter_that_cannot_be_read_gives_its_room_back():
    async def play(made):
        await use(made, "a")
        with pytest.raises(ZeroDivisionError):
            async with made.residents.using(made["a"], adapter=ComingAdapter("mine", 1)):
                assert made.residents.used_bytes == 2
                raise ZeroDivisionError
        await use(made, "b")
        assert made.loaded == "ab"

    assert within(stage(), play) == ["a+", "b+"]


def test_an_adapter_is_not_refused_for_one_that_is_being_read():
    """The other one may be refused, and then there is room."""

    async def play(made):
        read = asyncio.Event()

        async def fails():
            async with made.residents.using(made["a"], adapter=ComingAdapter("other", 1)):
                await read.wait()

        first = asyncio.create_task(fails())
        await quiet(made)
        second = asyncio.create_task(bring(made, "a"))
        await quiet(made)
        assert not second.done()
        read.set()
        await asyncio.gather(first, second)
        with pytest.raises(ApiError, match="takes 1 B, its model 2 B, of 2 B") as caught:
            await bring(made, "a", adapter="third")
        assert caught.value.status == 400

    played(stage(), play)


def test_an_engine_that_fails_while_an_adapter_waits_is_loaded_anew_for_it():
    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "b", ends))
        await quiet(made)
        async with made.residents.using(made["a"]) as failing:
            bringing = asyncio.create_task(bring(made, "a"))
            await quiet(made)
            failing.on_failure()
            await quiet(made)
        ends.set()
        await asyncio.gather(answers, bringing)

    assert within(stage(), play) == ["b+", "a+", "b-", "a-", "a+", "mine of a"]


def test_an_adapter_that_does_not_fit_beside_its_model_unloads_no_other():
    async def play(made):
        await use(made, "a")
        await use(made, "b")
        with pytest.raises(ApiError, match=r"'big' takes 2 B, its model 1 B, of 2 B \(--memory\)") as caught:
            await bring(made, "a", "big", num_bytes=2)
        assert caught.value.status == 400 and made.loaded == "ab"
        await bring(made, "a", "mine")
        with pytest.raises(ApiError, match="'other' takes 1 B, its model 2 B, of 2 B"):
            await bring(made, "a", "other")

    assert within(stage(), play) == ["a+", "b+", "b-", "mine of a"]


def test_a_name_is_given_to_one_model_also_among_those_who_wait():
    async def play(made):
        ends, loads, given = asyncio.Event(), asyncio.Event(), (("a", "mine"), ("b", "Mine"))
        answers = asyncio.create_task(use(made, "c", ends))
        await quiet(made)
        first, second = (asyncio.create_task(bring(made, name, spelled, loads)) for name, spelled in given)
        await quiet(made)
        ends.set()
        await answers
        with pytest.raises(ApiError, match="'Mine' is the name of another model, or of its adapter") as caught:
            await second
        assert caught.value.status == 409
        loads.set()
        await first

    assert within(stage(room=4, a=1, b=1, c=3), play) == ["c+", "a+", "c-", "mine of a", "b+"]


def test_an_adapter_that_is_larger_in_memory_than_its_file():
    """Another model goes, once it is idle, as soon as that is seen."""

    async def play(made):
        for name in "ab":
            await use(made, name)
        made.clock.now_s += 1
        await bring(made, "a", num_bytes=1, held_bytes=2)
        await quiet(made)
        assert made.loaded == "a" and made.residents.used_bytes == 3

    assert played(stage(room=3), play) == ["a+", "b+", "mine of a", "b-"]


def test_an_adapter_takes_no_room_of_a_model_that_is_being_loaded():
    """It waits for its turn behind it."""
    made, ends = stage(), threading.Event()
    load_one = made.residents._load

    async def play(made):
        await use(made, "a")
        made.residents._load = lambda *given: ends.wait(60) and load_one(*given)
        asking = asyncio.create_task(use(made, "b"))
        while made["b"].state != LOADING:
            await quiet(made)
        bringing = asyncio.create_task(bring(made, "a"))
        await quiet(made)
        assert not bringing.done() and made.residents.used_bytes == 2
        ends.set()
        await asyncio.gather(asking, bringing)

    assert within(made, play) == ["a+", "b+", "b-", "mine of a"]


# ---- a server


def test_a_stream_is_whole_before_an_adapter_takes_its_models_room(paths, wanted, tmp_path, monkeypatch):
    """The adapter's file is read when the other model is unloaded."""
    save_adapter("llama", tmp_path / "first")
    read, there, answers = adapters_module._load, [], []
    monkeypatch.setattr(adapters_module, "_load", lambda *given: there.append(loaded(server)) or read(*given))
    with several(paths, room=2, options={"lora_folder": tmp_path}) as server:
        words, bytes_, _ = server.residents.all
        assert complete(server, "words", "w1").status_code == complete(server, "bytes", "a").status_code == 200
        gate = Gate(bytes_.served.driver.core)
        texts = [threading.Thread(target=lambda: answers.append(complete(server, "bytes", PROMPTS[0])))]
        texts[0].start()
        assert gate.waits.wait(60)
        body = {"model": "words", "lora_name": "mine", "lora_path": "first"}
        for _ in range(2):  # of which one is refused in the end
            post = lambda: answers.append(server.http.post("/v1/load_lora_adapter", json=body))  # noqa: E731
            texts.append(threading.Thread(target=post))
            texts[-1].start()
        until(lambda: bytes_.is_leaving and len(words.waiters) == 2)
        assert server.residents.used_bytes == 2 * MODEL_BYTES and not there
        gate.opened.set()
        for each in texts:
            each.join(60)
        assert there == [["words"]] * 2
        assert sorted(answer.status_code for answer in answers) == [200, 200, 409]
        (text,) = (answer for answer in answers if answer.request.url.path == "/v1/completions")
        assert text_of(text) == wanted["bytes", PROMPTS[0]]


def test_a_request_that_is_refused_anyway_unloads_no_model(paths, tmp_path):
    save_adapter("llama", tmp_path / "first")
    with several(paths, room=2, options={"lora_folder": tmp_path}) as server:
        for name in ("words", "bytes"):
            assert complete(server, name, "w1").status_code == 200

        def load_adapter(**more):
            body = {"model": "words", "lora_name": "mine", "lora_path": "first", **more}
            return server.http.post("/v1/load_lora_adapter", json=body).status_code

        given = ({"lora_path": "none"}, 404), ({"lora_path": "../first"}, 404), ({"lora_name": 3}, 400)
        for more, status in (*given, ({"lora_name": "bytes"}, 409), ({"model": "no"}, 404)):
            assert load_adapter(**more) == status and loaded(server) == ["words", "bytes"], more
        assert load_adapter() == 200
        until(lambda: loaded(server) == ["words"])
        assert load_adapter() == 409
