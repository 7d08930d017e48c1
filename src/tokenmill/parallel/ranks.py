"""The ranks of a model on one machine: processes that rank 0 starts, which share memory and end with it.

Rank 0 tells each of the others over a socket of its own what to load. When a rank ends, for whatever reason, its socket
is closed, so that rank 0 knows within milliseconds; and the others end when rank 0 closes their sockets.
"""

import json
import selectors
import signal
import socket
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from tokenmill.errors import RankLost
from tokenmill.memory.arena import SharedMemory
from tokenmill.parallel import processes
from tokenmill.parallel.division import ALONE, Rank
from tokenmill.process import forget_in_child

MODULE = "tokenmill.loader.rank"  # which the other ranks run


class Ranks:
    """A rank's side of the other ranks. steps: memory in which a step is computed. cache: memory of K and V rows."""

    def __init__(
        self, rank: Rank = ALONE, steps: SharedMemory | None = None, cache: SharedMemory | None = None
    ) -> None:
        self.rank, self.steps, self.cache = rank, steps, cache

    def start(self, told: Mapping[str, Any]) -> None:
        """Start the other ranks, as rank 0, and tell them what to load; they load while this one does."""

    def on_end(self, call: Callable[[], None]) -> None:
        """Have a function called when the ranks end, for whatever reason; at once if they have ended."""

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        """Have a function called, in a thread of its own, with the error that another rank has ended by itself."""

    def check(self) -> None:
        """Raise RankLost if another rank has ended."""

    def end(self) -> None:
        """End the other ranks."""


class OtherRanks(Ranks):
    """The other ranks as rank 0 knows them, which has started them: the processes, and a socket to each."""

    def __init__(self, count: int) -> None:
        super().__init__(Rank(0, count), SharedMemory(), SharedMemory())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._sockets: list[socket.socket] = []
        self._lost, self._at_end, self._lock = "", list[Callable[[], None]](), threading.Lock()
        self._at_loss: list[Callable[[RankLost], None]] = []
        self._is_ending = False
        forget_in_child(self)

    def start(self, told: Mapping[str, Any]) -> None:
        assert self.steps is not None
        assert self.cache is not None
        shared = self.steps.descriptor, self.cache.descriptor
        for number in range(1, self.rank.count):
            ours, process = processes.start(MODULE, shared, subprocess.DEVNULL)
            self._sockets.append(ours)
            self._processes.append(process)
            send(ours, {**told, "rank": [number, self.rank.count], "shared": shared})
        threading.Thread(target=_watch, args=(weakref.ref(self), list(self._sockets)), daemon=True).start()

    def on_end(self, call: Callable[[], None]) -> None:
        with self._lock:
            self._at_end.append(call)
            have_ended = bool(self._lost)
        if have_ended:
            call()

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        self._at_loss.append(call)

    def check(self) -> None:
        if self._lost:
            raise RankLost(self._lost)

    def lose(self, number: int, said: str) -> None:
        """Note that a rank has ended, and its last message; called by the thread that watches the sockets."""
        if self._is_ending:
            return  # all of them end, or this one has ended with the first
        process = self._processes[number - 1]
        with suppress(subprocess.TimeoutExpired):
            process.wait(processes.END_S)
        how = said or _how_it_ended(process.returncode)
        self._fail(f"rank {number} of {self.rank.count} {how}: load the model again")
        for call in self._at_loss:
            call(RankLost(self._lost))
        self.end()

    def _fail(self, why: str) -> None:
        """Have every step fail from now on."""
        with self._lock:
            self._lost = self._lost or why
            calls = list(self._at_end)
        for call in calls:
            call()

    def end(self) -> None:
        self._is_ending = True
        self._fail("the ranks of this model have been ended")
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # which the thread that watches it notices
            each.close()
        processes.end(self._processes)
        for memory in (self.steps, self.cache):
            if memory is not None:
                memory.close()

    def forget(self) -> None:
        """Close a forked process's copies of the sockets, so that the ranks end with the process that started them."""
        for each in self._sockets:
            each.close()


def _watch(known: "weakref.ref[OtherRanks]", sockets: list[socket.socket]) -> None:
    """Wait until a socket is closed at its other end, and report the last message that came through it."""
    with selectors.DefaultSelector() as selector:
        for number, each in enumerate(sockets, start=1):
            if each.fileno() >= 0:
                selector.register(each, selectors.EVENT_READ, number)
        while selector.get_map():
            for key, _ in selector.select(1.0):
                said = receive(key.fileobj)  # type: ignore[arg-type]
                selector.unregister(key.fileobj)
                if (ranks := known()) is not None:
                    ranks.lose(key.data, "" if said is None else f"says: {said['error']}")
                del ranks
            if known() is None or any(each.fileno() < 0 for each in sockets):
                return


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "does not answer"
    if code < 0:
        return f"was ended by signal {signal.Signals(-code).name}"
    return f"has ended with exit code {code}"


def send(to: socket.socket, what: Mapping[str, Any]) -> None:
    """Send a JSON document on one line."""
    with suppress(BrokenPipeError, ConnectionResetError):  # the reader notices by itself
        to.sendall(json.dumps(what).encode() + b"\n")


def receive(source: socket.socket) -> dict[str, Any] | None:
    """Wait for a JSON document on one line; None where the other side ends before it."""
    text = b""
    with suppress(OSError):
        while not text.endswith(b"\n") and (more := source.recv(1 << 16)):
            text += more
    return json.loads(text) if text.endswith(b"\n") else None
