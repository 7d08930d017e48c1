"""Which of several models are in memory: the order in which they come and go, with loads that take no time."""

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tokenmill.serve.http.errors import ApiError, QueueFull
from tokenmill.serve.models.hosted import LOADED, UNLOADED, Hosted, ModelSetup
from tokenmill.serve.models.residents import TURN, Residents
from tokenmill.serve.start.options import Options
from tokenmill.settings.engine_config import EngineConfig


class Clock:
    """A clock that stands still unless a test moves it."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


@dataclass(eq=False)
class Stage:
    """Models of these sizes in so much room. What happens is noted: `a+` for a load of a, `a-` when it goes."""

    residents: Residents
    clock: Clock
    happened: list = field(default_factory=list)

    def __getitem__(self, name):
        return next(each for each in self.residents.all if each.name == name)

    @property
    def loaded(self):
        return "".join(each.name for each in self.residents.all if each.state == LOADED)


class Fake:
    """What stands in the place of the server of a model."""

    engine = SimpleNamespace(adapters={})

    def __init__(self, made, hosted, on_failure):
        self.name, self.on_failure, self.made = hosted.name, on_failure, made
        self.driver = SimpleNamespace(is_hung=False)
        self.service = SimpleNamespace(model=SimpleNamespace(adapters=()))

    def begin_to_end(self):
        pass

    def end(self, is_hung):
        self.made.happened.append(f"{self.name}-")
        return True


def stage(room=2, keep_alive_s=60.0, max_waiting=4, load_s=0.0, refuses=(), num_keys=1, **sizes):
    clock = Clock()
    made = Stage(None, clock)
    sizes = sizes or dict.fromkeys("abc", 1)
    hosted = [
        Hosted(
            ModelSetup(
                EngineConfig(model=f"/where/{name}", max_sequences=1),
                Options(name, max_queued=max_waiting - 1),
                None,
                keep_alive_s,
                size,
            )
        )
        for name, size in sizes.items()
    ]
    for each in hosted:
        each.note = lambda: None

    def load(one, on_failure):
        if one.name in refuses:
            raise refuses[one.name]
        clock.now_s += load_s
        made.happened.append(f"{one.name}+")
        return Fake(made, one, on_failure)

    made.residents = Residents(hosted, room, lambda setup: setup.num_bytes, load, lambda: None, None, num_keys, clock)
    return made


def played(made, play):
    """Runs a coroutine function of the stage, beside the task that loads and unloads."""

    async def both():
        task = asyncio.create_task(made.residents.run())
        try:
            async with asyncio.timeout(60):
                await play(made)
        finally:
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(both())
    return made.happened


async def quiet(made):
    """Waits until nothing more happens by itself."""
    for _ in range(20):
        await asyncio.sleep(0.002)


async def use(made, name, until=None, keep=None):
    async with made.residents.using(made[name]) as served:
        if keep is not None:
            (made[name].keep_alive_s,) = keep
        assert served.name == name
        if until is not None:
            await until.wait()


def test_a_model_is_loaded_when_it_is_asked_for_and_stays():
    async def play(made):
        assert made.loaded == ""
        await use(made, "b")
        await use(made, "b")
        await use(made, "a")
        assert made.loaded == "ab"

    assert played(stage(), play) == ["b+", "a+"]


def test_the_one_goes_that_was_used_longest_ago():
    async def play(made):
        for name in "aba":
            await use(made, name)
            made.clock.now_s += 1
        await use(made, "c")
        assert made.loaded == "ac"

    assert played(stage(), play) == ["a+", "b+", "b-", "c+"]


def test_as_many_go_as_must():
    async def play(made):
        for name in "abc":
            await use(made, name)
            made.clock.now_s += 1
        assert made.loaded == "c"

    assert played(stage(room=3, a=1, b=1, c=3), play) == ["a+", "b+", "a-", "b-", "c+"]


def test_one_that_answers_is_waited_for_and_takes_no_more():
    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "a", ends))
        await quiet(made)
        other = asyncio.create_task(use(made, "b"))
        await quiet(made)
        late = asyncio.create_task(use(made, "a"))
        await quiet(made)
        assert made.happened == ["a+"] and not made["a"].is_usable and not late.done()
        ends.set()
        await asyncio.gather(answers, other, late)

    assert played(stage(room=1), play) == ["a+", "a-", "b+", "b-", "a+"]


def test_a_turn_lasts_as_long_as_several_loads():
    """Requests that come meanwhile are answered before the other model comes."""

    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "a", ends))
        await quiet(made)
        other = asyncio.create_task(use(made, "b"))
        await quiet(made)
        assert made["a"].is_usable, "its turn has just begun"
        await use(made, "a")
        made.clock.now_s += 2 * TURN
        made.residents._wake.set()
        await quiet(made)
        assert not made["a"].is_usable
        ends.set()
        await asyncio.gather(answers, other)

    assert played(stage(room=1, load_s=2.0), play) == ["a+", "a-", "b+"]


def test_an_idle_one_goes_before_one_that_answers():
    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "a", ends))
        await quiet(made)
        made.clock.now_s += 1
        await use(made, "b")
        await use(made, "c")
        assert made.loaded == "ac"
        ends.set()
        await answers

    assert played(stage(), play) == ["a+", "b+", "b-", "c+"]


def test_one_that_stays_for_ever_goes_last():
    async def play(made):
        await use(made, "a", keep=(None,))
        made.clock.now_s += 1
        await use(made, "b")
        await use(made, "c")
        assert made.loaded == "ac"
        made.clock.now_s += 1e6
        made.residents._wake.set()
        await quiet(made)
        assert made.loaded == "a"

    assert played(stage(), play) == ["a+", "b+", "b-", "c+", "c-"]


def test_an_idle_model_is_unloaded_after_its_time():
    async def play(made):
        await use(made, "a")
        made.clock.now_s += 59
        await use(made, "a")
        made.clock.now_s += 59
        made.residents._wake.set()
        await quiet(made)
        assert made.loaded == "a"
        made.clock.now_s += 2
        made.residents._wake.set()
        await quiet(made)
        assert made.loaded == ""

    assert played(stage(), play) == ["a+", "a-"]


def test_a_request_says_how_long_its_model_stays():
    async def play(made):
        await use(made, "a", keep=(0.0,))
        await quiet(made)
        assert made.loaded == ""
        await use(made, "a")
        await quiet(made)
        assert made.loaded == "a", "what was said was of its stay before"

    assert played(stage(), play) == ["a+", "a-", "a+"]


def test_all_who_wait_for_a_model_get_it_together():
    async def play(made):
        ends = asyncio.Event()
        waiting = [asyncio.create_task(use(made, "a", ends)) for _ in range(4)]
        await quiet(made)
        assert made["a"].users == 4
        ends.set()
        await asyncio.gather(*waiting)
        assert made["a"].users == 0

    assert played(stage(), play) == ["a+"]


def test_more_than_may_wait_are_refused():
    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "a", ends))
        await quiet(made)
        waiting = [asyncio.create_task(use(made, "b")) for _ in range(4)]
        await quiet(made)
        with pytest.raises(QueueFull):
            await use(made, "b")
        ends.set()
        await asyncio.gather(answers, *waiting)

    played(stage(room=1), play)


def test_who_leaves_while_waiting_is_not_counted():
    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "a", ends))
        await quiet(made)
        gone = asyncio.create_task(use(made, "b"))
        await quiet(made)
        gone.cancel()
        await asyncio.wait({gone})
        ends.set()
        await answers
        await quiet(made)
        assert made.residents.num_waiting == 0
        await use(made, "a")
        assert all(each.users == 0 for each in made.residents.all)

    assert "b+" not in played(stage(room=1), play)


def test_a_model_that_cannot_be_loaded_harms_no_other():
    """Its path is not told."""

    async def play(made):
        with pytest.raises(ApiError, match="the model 'b' cannot be loaded: the server's log says why") as caught:
            await use(made, "b")
        assert caught.value.status == 503 and made["b"].state == UNLOADED
        await use(made, "a")
        with pytest.raises(ApiError, match="the server's log says why"):
            await use(made, "c")

    from tokenmill.errors import CheckpointError

    refuses = {"b": CheckpointError("/where/b is damaged"), "c": ZeroDivisionError("secret")}
    assert played(stage(refuses=refuses), play) == ["a+"]


def test_a_model_whose_engine_has_failed_is_loaded_anew():
    async def play(made):
        async with made.residents.using(made["a"]) as served:
            served.on_failure()
            await quiet(made)
            assert not made["a"].is_usable
        await quiet(made)
        assert made.loaded == ""
        await use(made, "a")

    assert played(stage(), play) == ["a+", "a-", "a+"]


def test_nothing_is_taken_at_the_end():
    async def play(made):
        await use(made, "a")
        made.residents.refuse_new()
        with pytest.raises(ApiError, match="shutting down"):
            await use(made, "b")

    made = stage()
    played(made, play)
    assert made.residents.close() and made.happened == ["a+", "a-"]


def test_no_key_takes_all_places_of_those_who_wait():
    async def play(made):
        ends = asyncio.Event()
        answers = asyncio.create_task(use(made, "a", ends))
        await quiet(made)

        async def wait(client):
            async with made.residents.using(made["b"], client):
                pass

        waiting = [asyncio.create_task(wait(b"one")) for _ in range(2)]
        await quiet(made)
        with pytest.raises(QueueFull):
            await wait(b"one")
        waiting.append(asyncio.create_task(wait(b"two")))
        await quiet(made)
        assert made.residents.num_waiting == 3
        ends.set()
        await asyncio.gather(answers, *waiting)
        assert not +made["b"].waiting_of

    played(stage(room=1, num_keys=2), play)


def test_a_server_without_a_queue_serves():
    async def play(made):
        await use(made, "a")
        await use(made, "b")

    assert played(stage(room=1, max_waiting=1), play) == ["a+", "a-", "b+"]


def test_at_the_end_a_loaded_model_takes_nothing_either():
    async def play(made):
        await use(made, "a")
        made.residents.is_draining = True
        with pytest.raises(ApiError, match="shutting down"):
            await use(made, "a")

    played(stage(), play)
