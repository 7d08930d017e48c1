"""A plugin for pytest that finds tests which count on a moment, or on the tests before them: `make test-late`.

Tests run in a random order. Whatever the package does in a thread of its own begins late and ends late, and a server
goes on late after the last byte of an answer. TOKENMILL_LATE_SEED selects the order and the times; the head of the
output says it.
"""

import asyncio
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from itertools import chain

from uvicorn.protocols.http.h11_impl import RequestResponseCycle

SEED = int(os.environ.get("TOKENMILL_LATE_SEED", "1"))
LATE_S = 0.1

_times = random.Random(SEED)  # not the module's own, which tests seed
_submit, _run, _send = ThreadPoolExecutor.submit, threading.Thread.run, RequestResponseCycle.send


def pytest_report_header():
    return f"TOKENMILL_LATE_SEED={SEED}"


def pytest_collection_modifyitems(items):
    """Shuffle the files, and the tests of each; so fixtures of a file are made once, as always."""
    order, files = random.Random(SEED), {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests in files.values():
        order.shuffle(tests)
    shuffled = order.sample(list(files.values()), len(files))
    items[:] = chain.from_iterable(shuffled)


def pytest_configure():
    ThreadPoolExecutor.submit, threading.Thread.run, RequestResponseCycle.send = _submit_late, _run_late, _send_late


def _sleep():
    time.sleep(_times.uniform(0, LATE_S))


def _is_ours(function):
    while isinstance(function, partial):
        function = function.func
    return (getattr(function, "__module__", None) or "").startswith("tokenmill")


def _late(function):
    @wraps(function)
    def call(*args, **kwargs):
        _sleep()
        try:
            return function(*args, **kwargs)
        finally:
            _sleep()

    return call


def _submit_late(pool, function, /, *args, **kwargs):
    return _submit(pool, _late(function) if _is_ours(function) else function, *args, **kwargs)


def _run_late(thread):
    (_late(_run) if _is_ours(getattr(thread, "_target", None)) else _run)(thread)


async def _send_late(cycle, message):
    await _send(cycle, message)
    if message["type"] == "http.response.body" and not message.get("more_body"):
        await asyncio.sleep(_times.uniform(0, LATE_S))
