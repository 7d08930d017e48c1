"""The processes of ranks that rank 0 starts, from their start to their end."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired

END_S = 2.0  # for processes to end by themselves


def start(module: str, stdout: int | None = None) -> tuple[socket.socket, Popen[bytes]]:
    """Start a process that runs a module of ours, and give it a socket. Returns our end, and the process.

    The process has the descriptor of its end as its argument. It finds the same modules as this process: a program or
    its working directory may have changed the places since it began.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        places = [str(Path(path).absolute()) for path in sys.path if path]
        # A session of its own: Ctrl-C on the terminal is for rank 0 alone.
        process = Popen(  # noqa: S603  (Python itself, with a module of ours)
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=DEVNULL,
            stdout=stdout,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            start_new_session=True,
        )
    return ours, process


def end(processes: Sequence[Popen[bytes]]) -> None:
    """Wait for the end of processes whose sockets were closed; kill those processes that do not end in time."""
    for process in processes:
        try:
            process.wait(END_S)
        except TimeoutExpired:
            process.kill()
            process.wait()
