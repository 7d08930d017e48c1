"""The engine's thread and an engine: dropped together, closed under an interrupt."""

import gc
import threading
import time
import weakref

import pytest

from tests.interrupts import lines
from tokenmill import RequestError, load


def test_an_engine_and_its_session_are_dropped_together(llama):
    """Neither was closed; the engine's thread must not hold what is to end it."""

    def use():
        engine = load(llama, dtype="float32", max_length=40)
        engine.session([1, 2, 3]).generate(max_new_tokens=2)
        session = engine.session([1, 2, 3])
        session.prefill()
        return weakref.ref(engine.core)

    known = use()
    for _ in range(100):
        gc.collect()
        if known() is None:
            break
        time.sleep(0.05)
    assert known() is None


def test_closing_is_interrupted_and_ends_what_another_thread_waits_for(llama):
    engine = load(llama, dtype="float32", max_length=100)
    for number in range(1, 30):
        errors = []

        def wait(errors=errors, engine=engine):
            try:
                engine.core.wait(engine.core.check_open)
            except RequestError as error:
                errors.append(str(error))

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        with pytest.raises(KeyboardInterrupt), lines(number) as at:
            engine.close()
            raise KeyboardInterrupt
        if not engine.core._is_closed:
            engine.close()
        waiting.join(20)
        assert errors == ["this engine is closed"], at.where
        engine = load(llama, dtype="float32", max_length=100)
