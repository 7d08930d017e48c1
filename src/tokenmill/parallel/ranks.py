"""The ranks of a model on one machine: processes that rank 0 starts, which share memory and end with it.

Rank 0 tells each of the others over a channel of its own what to load. When a rank ends, for whatever reason, its
channel is closed, so that rank 0 knows within milliseconds; and the others end when rank 0 closes their channels.
"""

import signal
import subprocess
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from tokenmill.errors import RankLost
from tokenmill.memory.arena import SharedMemory
from tokenmill.parallel import processes
from tokenmill.parallel.channel import Channel, Message
from tokenmill.parallel.division import ALONE, Rank

MODULE = "tokenmill.loader.rank"  # which the other ranks run
LOST = Message("lost")


class Ranks:
    """A rank's side of the other ranks. steps: memory in which a step is computed. cache: memory of K and V rows."""

    def __init__(
        self, rank: Rank = ALONE, steps: SharedMemory | None = None, cache: SharedMemory | None = None
    ) -> None:
        self.rank, self.steps, self.cache = rank, steps, cache

    def start(self, told: Mapping[str, Any]) -> None:
        """Start the other ranks, as rank 0, and tell them what to load; they load while this one does."""

    def meet(self) -> None:
        """Begin to wait for the other ranks, once this one has its weights."""

    def load_beside(self, told: Mapping[str, Any], shared: Sequence[int]) -> None:
        """Tell every other rank what to load beside its model. shared: descriptors of the memory that they map."""

    def ask(self, name: str, facts: Any, tensors: Mapping[str, Tensor]) -> list[Any]:
        """Send a command to every other rank; return the answer of each. RankLost if one of them has ended."""
        return []

    def on_end(self, call: Callable[[], None]) -> None:
        """Have a function called when the ranks end, for whatever reason; at once if they have ended."""

    def on_loss(self, call: Callable[[RankLost], None]) -> None:
        """Have a function called, in a thread of its own, with the error that another rank has ended by itself."""

    def check(self) -> None:
        """Raise RankLost if another rank has ended."""

    def end(self) -> None:
        """End the other ranks."""


class OtherRanks(Ranks):
    """The other ranks as rank 0 knows them, which has started them: the processes, and a channel to each."""

    def __init__(self, count: int) -> None:
        super().__init__(Rank(0, count), SharedMemory(), SharedMemory())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[Channel] = []
        self._answers = [SimpleQueue[Message]() for _ in range(1, count)]
        self._lost, self._at_end, self._lock = "", list[Callable[[], None]](), threading.Lock()
        self._at_loss: list[Callable[[RankLost], None]] = []
        self._is_ending = False

    def start(self, told: Mapping[str, Any]) -> None:
        assert self.steps is not None
        assert self.cache is not None
        shared = self.steps.descriptor, self.cache.descriptor
        for number in range(1, self.rank.count):
            ours, process = processes.start(MODULE, subprocess.DEVNULL)
            self._channels.append(channel := Channel(ours))
            self._processes.append(process)
            with suppress(OSError):  # it has ended: whoever watches the channel reads that
                channel.send("load", {**told, "rank": [number, self.rank.count]}, shared=shared)
            threading.Thread(target=_watch, args=(weakref.ref(self), number, channel), daemon=True).start()

    def load_beside(self, told: Mapping[str, Any], shared: Sequence[int]) -> None:
        self.check()
        for number, channel in enumerate(self._channels, start=1):
            with suppress(OSError):
                channel.send("load", {**told, "rank": [number, self.rank.count]}, shared=shared)

    def ask(self, name: str, facts: Any, tensors: Mapping[str, Tensor]) -> list[Any]:
        self.check()
        for channel in self._channels:
            with suppress(OSError):
                channel.send(name, facts, tensors)
        found = [answers.get() for answers in self._answers]
        self.check()
        return [message.facts for message in found]

    def take(self, number: int, answer: Message) -> None:
        """Take the answer of a rank; called by the thread that watches its channel."""
        self._answers[number - 1].put(answer)

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
        """Note that a rank has ended, and its last message; called by the thread that watches its channel."""
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
        for answers in self._answers:
            answers.put(LOST)

    def end(self) -> None:
        self._is_ending = True
        self._fail("the ranks of this model have been ended")
        for each in self._channels:
            each.close()
        processes.end(self._processes)
        for memory in (self.steps, self.cache):
            if memory is not None:
                memory.close()


class RanksBeside(Ranks):
    """The processes that another model has as its ranks: they load a second one beside it once rank 0 has its weights.

    Until then nothing is told to them, so that a model which rank 0 cannot load is left out. They end with the first.
    """

    def __init__(self, first: Ranks) -> None:
        super().__init__(first.rank, SharedMemory(), SharedMemory())
        self._first, self._told = first, dict[str, Any]()

    def start(self, told: Mapping[str, Any]) -> None:
        self._told = {**told}

    def meet(self) -> None:
        assert self.steps is not None
        assert self.cache is not None
        self._first.load_beside(self._told, (self.steps.descriptor, self.cache.descriptor))

    def on_end(self, call: Callable[[], None]) -> None:
        self._first.on_end(call)

    def check(self) -> None:
        self._first.check()

    def end(self) -> None:
        for memory in (self.steps, self.cache):
            if memory is not None:
                memory.close()


def _watch(known: "weakref.ref[OtherRanks]", number: int, channel: Channel) -> None:
    """Take a rank's answers until it ends, and report its last message."""
    said = ""
    while not said:
        try:
            message = channel.receive()
        except Exception:  # noqa: BLE001  (a connection that is broken, or was closed here, breaks in several ways)
            break
        if message.name == "error":
            said = f"says: {message.facts}"
        elif (ranks := known()) is not None:
            ranks.take(number, message)
            del ranks
    if (ranks := known()) is not None:
        ranks.lose(number, said)


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "does not answer"
    if code < 0:
        return f"was ended by signal {signal.Signals(-code).name}"
    return f"has ended with exit code {code}"
