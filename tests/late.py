"""A plugin for pytest that finds tests which count on a moment, or on the tests before them: `make test-late`.

Tests run in a random order. Whatever the package does in a thread of its own begins late and ends late, and a server
goes on late after the last byte of an answer. TOKENMILL_LATE_SEED selects the order and the times; the head of the
output says it.
"""

import asyncio
import os
import random
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, wraps
from itertools import chain
from pathlib import Path

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
    sys.addaudithook(_audit)


def _audit(event, args):
    if event == "open" and args[2] & os.O_TRUNC:
        _refuse_to_cut(args[0], 0)
    elif event == "os.truncate":
        _refuse_to_cut(*args)


def _refuse_to_cut(path, length):
    try:
        found = os.stat(path)  # noqa: PTH116 (it may be the number of an open file)
    except OSError:
        return
    if found.st_size <= length or not stat.S_ISREG(found.st_mode):
        return
    mapped = f" {os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x} {found.st_ino} "
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if mapped in maps.read_text(errors="replace"):
                raise AssertionError(f"{path} is cut to {length} bytes while process {maps.parent.name} has it mapped")


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
