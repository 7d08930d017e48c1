"""The result of a function in a forked process, whose parent has used the threads of torch's pool."""

import os
import select
import signal
from collections.abc import Callable
from typing import Any

import torch

HANGS_S = 120.0  # only a child that waits for threads which do not exist takes so long


def in_fork(function: Callable[[], Any]) -> str:
    """repr of what the function returns in a child, or of what it raises there."""
    table = torch.ones(512, 512)
    assert torch.get_num_threads() > 1
    table @ table  # begins the threads of the pool
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = repr(function())
        except BaseException as error:  # noqa: BLE001  (whatever it is, the parent shows it)
            found = repr(error)
        os.write(writing, found.encode())
        os._exit(0)
    is_there, _, _ = select.select([reading], [], [], HANGS_S)
    if not is_there:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        return answer.read() if is_there else "it hangs"
