"""Ctrl-C inside `held_interrupts`: noted, and handled once when the block is over."""

import signal
import threading

import pytest

from tokenmill.memory.interrupts import held_interrupts


@pytest.fixture
def handled():
    """The arguments of each call of this process's handler, the latest last."""
    calls = []

    def handler(number, frame):
        calls.append((number, frame))

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield calls
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_nothing_is_handled_where_nothing_came(handled):
    with held_interrupts():
        pass
    assert handled == []


def test_the_first_interrupt_is_handled_when_the_block_is_over(handled):
    with held_interrupts():
        signal.raise_signal(signal.SIGINT)
        inner = signal.getsignal(signal.SIGINT)
        inner(signal.SIGINT, None)
        assert handled == []
    assert [number for number, _ in handled] == [signal.SIGINT]
    assert handled[0][1].f_code.co_name == "test_the_first_interrupt_is_handled_when_the_block_is_over"


def test_it_is_handled_after_an_error_too(handled):
    with pytest.raises(ValueError, match="cut"), held_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("cut")
    assert len(handled) == 1


@pytest.mark.parametrize("ignored", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_process_without_a_handler_keeps_what_it_has(handled, ignored):
    before = signal.signal(signal.SIGINT, ignored)
    try:
        with held_interrupts():
            assert signal.getsignal(signal.SIGINT) == ignored
        assert signal.getsignal(signal.SIGINT) == ignored
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_changes_no_handler(handled):
    """Python lets only the main thread set one, and interrupts no other."""
    seen, before = [], signal.getsignal(signal.SIGINT)

    def work():
        with held_interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
