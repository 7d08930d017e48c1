"""The engine's thread: what it calls and when, who waits, interrupts, signal handlers, its end."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import partial

import pytest

from tests.interrupts import lines
from tokenmill.engine.thread import EngineThread


@pytest.fixture
def thread():
    found = EngineThread()
    yield found
    found.quit()


class Steps:
    """Counts the steps that are made; `do` is called within each."""

    def __init__(self, do=lambda: None):
        self.count, self.do = 0, do

    def step(self):
        self.count += 1
        self.do()


def test_functions_are_called_one_after_the_other_in_its_own_thread(thread):
    idents, order = set(), []
    for number in range(5):
        thread.post(lambda number=number: order.append(number))
    assert thread.call(lambda: (idents.add(threading.get_ident()), thread.is_current)[1]) is True
    assert thread.call(threading.get_ident) in idents and threading.get_ident() not in idents
    assert order == [0, 1, 2, 3, 4] and not thread.is_current


def test_a_function_may_return_none_and_its_error_is_raised(thread):
    assert thread.call(lambda: None) is None
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    with pytest.raises(KeyboardInterrupt):
        thread.call(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    assert thread.call(lambda: 5) == 5


def test_steps_are_made_only_while_somebody_waits(thread):
    steps = Steps()
    assert thread.wait(lambda: steps.count if steps.count >= 3 else None, steps.step) == 3
    assert thread.wait(lambda: 0, steps.step) == 0  # what is there already needs no step
    thread.call(lambda: None)
    assert steps.count == 3


def test_two_wait_for_the_same_steps(thread):
    steps, both, found = Steps(), threading.Barrier(2), {}

    def wait(until):
        both.wait()
        found[until] = thread.wait(lambda: steps.count if steps.count >= until else None, steps.step)

    waiting = [threading.Thread(target=wait, args=(until,)) for until in (40, 60)]
    for each in waiting:
        each.start()
    for each in waiting:
        each.join()
    assert 40 <= found[40] <= found[60] == steps.count == 60


def test_an_error_in_a_step_is_raised_where_somebody_waits_for_it(thread):
    fine, seen = Steps(), []
    bad = Steps(lambda: 1 / 0)
    thread.post(lambda: None, bad.step, seen.append)  # which waits for a step as well
    with pytest.raises(ZeroDivisionError):
        thread.wait(lambda: None, bad.step)
    assert [type(each) for each in seen] == [ZeroDivisionError] and bad.count == 1
    assert thread.wait(lambda: fine.count or None, fine.step) == 1


def test_what_nobody_waits_for_says_its_error_in_the_log(thread, caplog):
    thread.post(lambda: 1 / 0)
    thread.call(lambda: None)
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]


def test_interrupted_it_is_called_to_its_end_or_not_at_all(thread):
    """At every line of the caller's."""
    number, ended = 0, False
    thread.call(lambda: None)
    while not ended:
        number += 1
        called = []

        def do(called=called):
            called.append("begun")
            called.append("ended")

        with pytest.raises(KeyboardInterrupt), lines(number):
            thread.call(do)
            ended = True
            raise KeyboardInterrupt
        then = list(called)
        thread.call(lambda: None)
        assert called == then and called in ([], ["begun", "ended"])
    assert number > 5


def test_one_who_is_interrupted_waits_for_no_more_steps(thread):
    def interrupted():
        if steps.count == 2:
            os.kill(os.getpid(), signal.SIGINT)

    steps, before = Steps(interrupted), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            thread.wait(lambda: None, steps.step)
    finally:
        signal.signal(signal.SIGINT, before)  # which is "ignore" in a process that a shell began in the background
    thread.call(lambda: None)
    count = steps.count
    assert thread.call(lambda: steps.count) == count


def test_a_signal_handler_uses_it_while_its_thread_waits(thread):
    found, before = [], signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: found.append(thread.call(lambda: "handled")))
    sent = []

    def send():
        if len(sent) == len(found):  # else handlers would interrupt each other without end
            sent.append(os.kill(os.getpid(), signal.SIGUSR1))

    steps = Steps(send)
    try:
        assert thread.wait(lambda: steps.count if len(found) >= 3 else None, steps.step) >= 3
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert set(found) == {"handled"}


def test_a_signal_that_wakes_nobody_is_handled_all_the_same(thread):
    """As one that comes when the waiting thread has looked for signals, and does not sleep yet."""
    found, before = [], signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: found.append(True))

    def send():
        if steps.count == 1:
            time.sleep(0.1)  # so that the other one sleeps, where a signal would be noticed without this as well
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # received by the engine's thread

    steps = Steps(send)
    try:
        assert thread.wait(lambda: steps.count if found and steps.count > 1 else None, steps.step) > 1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_it_holds_nothing_that_it_was_handed(thread):
    class Thing:
        def step(self):
            pass

    thing = Thing()
    known = weakref.ref(thing)
    thread.wait(lambda thing=thing: 1, thing.step)
    thread.call(lambda thing=thing: None)
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda thing=thing: 1 / 0)
    del thing
    gc.collect()
    thread.call(lambda: None)
    assert known() is None


def test_stopped_it_ends_and_begins_again(thread):
    first = thread.call(threading.current_thread)
    thread.stop()
    thread.stop()
    first.join(60)
    assert not first.is_alive()
    assert thread.call(lambda: 7) == 7
    assert thread.call(threading.current_thread) is not first


def test_stopped_it_first_brings_to_an_end_what_somebody_waits_for(thread):
    steps = Steps(lambda: thread.stop() if steps.count == 1 else None)
    assert thread.wait(lambda: steps.count if steps.count >= 5 else None, steps.step) == 5


def test_many_threads_begin_and_stop_it_at_once(thread):
    wrong = []

    def use(number):
        for turn in range(200):
            if thread.call(partial(pow, number, turn)) != number**turn:
                wrong.append((number, turn))
            thread.stop()

    users = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for each in users:
        each.start()
    for each in users:
        each.join(120)
    assert not wrong and not any(each.is_alive() for each in users)


IMPORTS = """
import sys, types
for name in ("tokenmill.loader.loaded", "tokenmill.program.forward"):
    sys.modules[name] = types.SimpleNamespace(LoadedModel=None, Program=None)
"""
"""The thread knows these as types alone, and torch, which they import, takes seconds."""


def test_the_process_ends_while_a_step_is_made():
    """The interpreter waits for the step, and not for what would be waited for with it."""
    code = f"""{IMPORTS}
import threading, time
from tokenmill.engine.thread import EngineThread
thread, within = EngineThread(), threading.Event()
def step():
    within.set()
    time.sleep(0.2)
    print("a step", flush=True)
threading.Thread(target=lambda: thread.wait(lambda: None, step), daemon=True).start()
within.wait()
sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, "") and set(done.stdout.split("\n")) == {"a step", ""}


def test_it_is_used_once_the_process_ends():
    """By what was to be called before tokenmill was imported, and by what the interpreter collects at its end."""
    code = f"""{IMPORTS}
import atexit
atexit.register(lambda: print("atexit", uses[0]()))
class A:
    def __del__(self):
        print("collected", self.use())
def make(use):
    try: yield
    finally: print("generator", use())
from tokenmill.engine.thread import EngineThread
def user(wait=EngineThread.wait):
    thread, steps = EngineThread(), []
    def use():
        return wait(thread, lambda: len(steps) if len(steps) > 1 else None, lambda: steps.append(1))
    print(thread.call(lambda: 5))
    return use
uses = [user()]
a, made = A(), make(user())
a.use = user()
next(made)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    begun, ended = done.stdout.split()[:3], done.stdout.splitlines()[3:]
    assert begun == ["5"] * 3 and sorted(ended) == ["atexit 2", "collected 2", "generator 2"]


def test_an_error_where_nobody_waits_leaves_the_others_alone(thread, caplog):
    def fail(_=None):
        raise ValueError

    thread.post(fail, on_error=fail)
    thread.tidy(fail)
    assert thread.call(lambda: 5) == 5
    assert [record.exc_info[0] for record in caplog.records] == [ValueError, ValueError]
