"""Requests as objects: several continuations, cancel, deadline, priority, tenants, a full queue, threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.empty import check_empty
from tests.marks import needs_native
from tests.tiny_models import prompt
from tokenmill import CapacityError, RequestError, SamplingParams, load
from tokenmill.engine.loop import Observer
from tokenmill.schedule.blocks import chain_digest

START = prompt(20, seed=3)
PLAIN = SamplingParams(max_new_tokens=8, ignore_eos=True)


def core_for(path, **how):
    return load(
        path, **{"dtype": "float32", "max_length": 64, "block_size": 4, "max_sequences": 3, "threads": 1, **how}
    ).core


def run(core, requests):
    """Step until all have ended; the numbers of the requests in the order of their ends."""
    order = []
    while len(order) < len(requests):
        core.step()
        order += [number for number, one in enumerate(requests) if one.is_done and number not in order]
    return order


def submitted(core, *requests):
    for request in requests:
        core.submit(request)
    return requests


def test_pieces_of_several_continuations_are_those_of_the_completions(llama):
    core = core_for(llama)
    params = SamplingParams(max_new_tokens=8, ignore_eos=True, temperature=0.9, seed=5, n=3, logprobs=2)
    wanted = core.finish([core.request(START, params)])
    pieces = list(core.follow(core.request(START, params)))
    assert {piece.index for piece in pieces} == {0, 1, 2}
    for index, whole in enumerate(wanted):
        own = [piece for piece in pieces if piece.index == index]
        assert sum((piece.tokens for piece in own), ()) == whole.tokens
        assert sum((piece.logprobs for piece in own), ()) == whole.logprobs
        assert len(whole.logprobs) == 8
        assert [piece.done is not None for piece in own] == [False] * (len(own) - 1) + [True]
        assert own[-1].done.tokens == whole.tokens and own[-1].done.seed == 5 + index
    assert len({whole.tokens for whole in wanted}) == 3
    check_empty(core)


def test_a_cancelled_request_gives_its_blocks_back_and_the_others_go_on(llama):
    core = core_for(llama, prefix_cache=False)
    (wanted,) = core.finish([core.request(START, PLAIN)])
    kept, cancelled = submitted(core, core.request(START, PLAIN), core.request(prompt(17), PLAIN))
    core.step()
    before = core.num_used_blocks
    core.cancel(cancelled)
    assert core.num_used_blocks < before
    assert len(core.trackers) == 1
    run(core, [kept])
    assert [piece.done.tokens for piece in core.take(kept)] == [wanted.tokens]
    core.cancel(kept)  # it has ended: nobody follows it any more
    core.cancel(cancelled)
    check_empty(core)


def test_what_the_garbage_collector_calls_waits_for_no_step(llama):
    engine = load(llama, dtype="float32", max_length=64)
    session, stream = engine.session(START), engine.stream(START, max_new_tokens=9, ignore_eos=True)
    next(stream)

    def collect():
        nonlocal session, stream
        session = stream = None

    thread = threading.Thread(target=collect, daemon=True)

    def within():
        thread.start()
        thread.join(60)
        return thread.is_alive()

    assert not engine.core.call(within)
    check_empty(engine.core)


def test_a_deadline_fails_its_own_request_once(llama):
    core = core_for(llama)
    now_s = 100.0
    core.loop.clock = lambda: now_s
    (wanted,) = core.finish([core.request(START, PLAIN)])
    late, other = submitted(core, core.request(START, PLAIN, timeout_s=5.0), core.request(START, PLAIN, timeout_s=6.5))
    core.step()
    now_s = 104.9
    core.step()
    seen = sum((piece.tokens for piece in core.take(late)), ())
    assert seen and not late.is_done
    now_s = 105.0
    core.step()
    assert late.is_done
    with pytest.raises(RequestError, match=f"the deadline has passed after {len(seen)} tokens"):
        core.take(late)
    assert core.take(late) == []
    assert seen == wanted.tokens[: len(seen)]
    run(core, [other])
    assert core.take(other)[-1].done.tokens == wanted.tokens
    core.cancel(late)
    core.cancel(other)
    check_empty(core)


def test_an_error_that_came_in_a_step_for_another_is_raised(llama):
    core = core_for(llama)
    pieces = core.follow(core.request(START, PLAIN, timeout_s=60.0))
    next(pieces)
    core.loop.clock = lambda: 1e9
    core.step()
    with pytest.raises(RequestError, match="the deadline has passed after 1 tokens"):
        list(pieces)
    with pytest.raises(RequestError, match="the deadline has passed"):
        core.finish([core.request(START, PLAIN, timeout_s=0.0)])
    check_empty(core)


def test_a_deadline_ends_what_still_waits(llama):
    core = core_for(llama, max_sequences=1)
    now_s = 0.0
    core.loop.clock = lambda: now_s
    first, waiting = submitted(core, core.request(START, PLAIN), core.request(START, PLAIN, timeout_s=1.0))
    core.step()
    now_s = 2.0
    core.step()
    assert waiting.is_done and not first.is_done
    with pytest.raises(RequestError, match="after 0 tokens"):
        core.take(waiting)
    run(core, [first])


def test_a_lower_priority_number_runs_first_and_equals_in_order_of_arrival(llama):
    core = core_for(llama, max_sequences=1)
    requests = submitted(core, *(core.request(START, PLAIN, priority=priority) for priority in (1, 0, 1, -1)))
    assert run(core, requests) == [3, 1, 0, 2]


def test_two_tenants_share_no_rows(llama):
    core = core_for(llama)

    def num_named(salt):
        """Blocks that can be found after a request of this tenant."""
        core.finish([core.request(START, PLAIN, salt=salt)])
        return core.scheduler.allocator.num_named

    first = num_named(b"")
    assert first == (len(START) + PLAIN.max_new_tokens - 1) // 4
    assert num_named(b"one") == 2 * first  # nothing was found under another tenant's name
    assert num_named(b"two") == 3 * first
    assert num_named(b"one") == 3 * first


def test_a_full_queue_takes_nothing_of_a_request(llama):
    core = core_for(llama, max_sequences=1, max_waiting=2)
    (first,) = submitted(core, core.request(START, PLAIN))
    core.step()
    three, two = (core.request(START, SamplingParams(max_new_tokens=2, n=n)) for n in (3, 2))
    with pytest.raises(CapacityError, match="max_waiting"):
        core.submit(three)
    assert len(core.trackers) == 1 and not three.trackers
    core.submit(two)
    run(core, [first, two])
    core.cancel(first)
    core.cancel(two)
    check_empty(core)


def test_a_core_is_driven_by_two_threads(llama):
    quiet, core = core_for(llama), core_for(llama, cache_tokens=64)
    prompts = {name: [prompt(9 + number, seed=name) for number in range(6)] for name in range(2)}
    wanted = {
        name: [quiet.finish([quiet.request(one, PLAIN)])[0].tokens for one in own] for name, own in prompts.items()
    }

    def work(name):
        return [sum((piece.tokens for piece in core.follow(core.request(one, PLAIN))), ()) for one in prompts[name]]

    with ThreadPoolExecutor(len(prompts)) as pool:
        assert dict(zip(prompts, pool.map(work, prompts), strict=True)) == wanted
    check_empty(core)


# ---- ended from outside


class AtStep(Observer):
    """Does something in the midst of one of the steps, counted from 1."""

    def __init__(self, number, do):
        self.number, self.do, self.count = number, do, 0

    def phase(self, name, plan):
        if name == "plan":
            self.count += 1
            if self.count == self.number:
                self.do()


def test_whoever_follows_what_another_thread_ends_gets_an_error(llama):
    core = core_for(llama)
    request = core.request(START, PLAIN)
    pieces = core.follow(request)
    next(pieces)
    core.cancel(request)
    with pytest.raises(RequestError, match="cancelled"):
        list(pieces)
    assert request.is_done
    session = load(llama, dtype="float32", max_length=64).session(START)
    stream = session.stream(max_new_tokens=9, ignore_eos=True)
    next(stream)
    session.close()
    with pytest.raises(RequestError, match="its session was closed"):
        list(stream)
    check_empty(session.core)


@pytest.mark.parametrize(
    "use",
    [
        lambda engine: engine.generate(START, PLAIN),
        lambda engine: list(engine.stream(START, PLAIN)),
        lambda engine: engine.score(START, [START]),
        lambda engine: engine.logits(START),
        lambda engine: engine.session(START).prefill(),
        lambda engine: engine.session(START).generate(params=PLAIN),
    ],
)
def test_an_engine_that_is_closed_while_it_is_used_says_so(use, llama):
    engine = load(llama, dtype="float32", max_length=64, max_step_tokens=4, speculate="off", threads=1)
    closing = AtStep(3, engine.close)
    with pytest.raises(RequestError, match="this engine is closed"), engine.core.observed_by(closing):
        use(engine)
    for later in (lambda: engine.memory, engine.session, lambda: engine.open_session("x.kv"), engine.core.step):
        with pytest.raises(RequestError, match="this engine is closed"):
            later()


def test_a_stream_that_waits_for_its_turn_is_closed_after_one_step(llama):
    engine = load(llama, dtype="float32", max_length=64, max_sequences=1, speculate="off", threads=1)
    cancel, cancelled = engine.core.cancel, threading.Event()
    engine.core.cancel = lambda request: (cancel(request), cancelled.set())
    first, second = (engine.stream(START, max_new_tokens=40, ignore_eos=True) for _ in range(2))
    next(first)
    closer = threading.Thread(target=second.close)
    closing = AtStep(1, lambda: (closer.start(), cancelled.wait()))
    with engine.core.observed_by(closing), pytest.raises(RequestError, match="cancelled"):
        next(second)
    closer.join()
    assert closing.count == 1
    first.close()
    check_empty(engine.core)


def test_a_salt_is_not_the_name_of_a_block(llama):
    core = core_for(llama, block_size=4)
    wanted = core.finish([core.request(START[4:], PLAIN)])[0].tokens
    core.clear_prefix_cache()
    core.finish([core.request(START, PLAIN)])
    salt = chain_digest(b"", START[:4])
    assert core.finish([core.request(START[4:], PLAIN, salt=salt)])[0].tokens == wanted


def test_seeds_of_continuations_stay_seeds(llama):
    params = SamplingParams(n=3, seed=2**63 - 1, temperature=1.0, max_new_tokens=2)
    done = load(llama, max_length=64).generate(START, params)
    assert [each.seed for each in done.completions] == [2**63 - 1, 0, 1]


def test_a_request_that_is_overdue_takes_no_place_in_the_queue(llama):
    core = core_for(llama, max_sequences=1, max_waiting=1)
    now_s = 0.0
    core.loop.clock = lambda: now_s
    running, late = submitted(core, core.request(START, PLAIN)), None
    core.step()
    late = core.request(START, PLAIN, timeout_s=5.0)
    core.submit(late)
    now_s = 6.0
    submitted(core, core.request(START, PLAIN))
    assert late.is_done and running


@pytest.mark.parametrize("program", [pytest.param("native", marks=needs_native), "eager"])
def test_torch_has_one_thread_beside_a_program_with_threads_of_its_own(program, llama):
    """Torch's threads spin after each operation, and would take the processors from the program's."""
    engine = load(llama, program=program, dtype="float32", threads=2)
    seen = []

    class Threads(Observer):
        def phase(self, name, plan):
            seen.append(torch.get_num_threads())

    torch.set_num_threads(3)
    try:
        with engine.core.observed_by(Threads()):
            engine.generate([1, 2, 3], max_new_tokens=3, temperature=0.5)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(2)
    assert set(seen) == {1 if program == "native" else 2}
