"""Rank 0's side of the other ranks: it sends commands to them, and notices at once when one is lost.

A group that has lost a rank has ended: every later command raises the same error, and the other ranks end, too. The
reports of a rank come through its channel, on which a thread waits.
"""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from queue import SimpleQueue
from subprocess import TimeoutExpired
from typing import Any

import torch
from torch import Tensor

from tokenmill.errors import ConfigError, RankLost
from tokenmill.parallel.channel import Channel, Message
from tokenmill.parallel.collectives import Group
from tokenmill.parallel.processes import end
from tokenmill.parallel.rendezvous import Meeting
from tokenmill.process import forget_in_child

NOTICE_S = 2.0  # until the thread of a channel has read of a loss that the process group has noticed
LOST = Message("lost")


class Team:
    """The other ranks. error: the reason why the group ended, unless it was closed. on_loss: called with it, in any
    thread.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.size, self._meeting = meeting.size, meeting
        self.group: Group | None = None
        self.error: RankLost | None = None
        self.on_loss: Callable[[RankLost], None] | None = None
        self._lock, self._is_lost, self._is_closed = threading.Lock(), threading.Event(), False
        self._inboxes = [SimpleQueue[Message]() for _ in meeting.channels]
        self._apart: dict[str, list[SimpleQueue[Message]]] = {}  # see take_apart
        for index, channel in enumerate(meeting.channels):
            # The threads hold no reference to the team, so that a forgotten team is closed.
            reader = threading.Thread(target=_read, args=(weakref.ref(self), index, channel), daemon=True)
            reader.start()
        self._finalizer = weakref.finalize(self, _end, meeting)
        forget_in_child(self)

    def agree(self, facts: Mapping[str, Any], decided: Any, device: torch.device) -> Group:
        """Compare the facts of all ranks with rank 0's, then tell them rank 0's decisions, and make the process group.
        ConfigError for the first fact that differs, RankLost if a rank is lost.
        """
        for rank, message in enumerate(self.collect("facts"), 1):
            for name, value in facts.items():
                if (theirs := message.facts.get(name)) != value:
                    allowed = f"the same on every rank, and it is {theirs!r} on rank {rank}"
                    raise ConfigError(name, value, f"{allowed} (tensor_parallel = {self.size})", "rank 0")
        self.tell("join", decided)
        self.group = self._make_group(device)
        return self.group

    def _make_group(self, device: torch.device) -> Group:
        """Make the group in a thread of its own, because torch's wait for a rank that is lost would last too long."""
        meeting = self._meeting
        pool = ThreadPoolExecutor(1)
        made = pool.submit(lambda: Group(meeting.open_store(), 0, self.size, device, meeting.address))
        pool.shutdown(wait=False)
        while not wait([made], 0.05).done:
            self.check()
        try:
            return made.result()
        except RuntimeError as error:
            raise self.failed(error) from error

    @property
    def pids(self) -> list[int]:
        """The processes of the ranks that this one has started."""
        return [process.pid for process in self._meeting.processes]

    def check(self) -> None:
        """Raise the error by which the group has ended, if it has."""
        if self.error is not None:
            raise RankLost(str(self.error))
        if self._is_closed:
            raise RankLost("the ranks of this engine were ended")

    def tell(self, name: str, facts: Any = None, tensors: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        """Send a command to every other rank. tensors: for each of them, in their order."""
        self.check()
        for index, channel in enumerate(self._meeting.channels):
            try:
                channel.send(name, facts, None if tensors is None else tensors[index])
            except OSError as error:
                raise self.failed(error) from error

    def take_apart(self, name: str) -> None:
        """Keep messages of that name apart: another thread collects them than the one which collects the others."""
        self._apart[name] = [SimpleQueue[Message]() for _ in self._inboxes]

    def collect(self, name: str) -> list[Message]:
        """Wait for a message of this name from each of the other ranks."""
        found = []
        for inbox in self._apart.get(name, self._inboxes):
            message = inbox.get()
            self.check()
            assert message.name == name, f"{message.name} came in the place of {name}"
            found.append(message)
        return found

    def await_ready(self) -> None:
        """Wait until the others have loaded. No rank reads the store's file any more then."""
        self.collect("ready")
        if self._meeting.folder is not None:
            self._meeting.folder.cleanup()  # now, since nobody does after kill -9

    def failed(self, error: BaseException) -> RankLost:
        """Make the error to raise after sending to other ranks has failed: the loss of a rank, if one is noticed."""
        self._is_lost.wait(NOTICE_S)
        self.lose(f"the ranks of tensor_parallel = {self.size} cannot go on: {error}")
        return RankLost(str(self.error or "the ranks of this engine were ended"))

    def lose(self, reason: str) -> None:
        """End the group, for this reason unless it has ended before. Called from any thread."""
        with self._lock:
            if self.error is not None or self._is_closed:
                return
            self.error = RankLost(reason)
        if (group := self.group) is not None:
            group.abort()
        for inboxes in (self._inboxes, *self._apart.values()):
            for inbox in inboxes:
                inbox.put(LOST)
        self._is_lost.set()
        if self.on_loss is not None:
            self.on_loss(self.error)
        _end(self._meeting)

    def report(self, index: int, reason: str) -> None:
        """Take the report that a rank has ended, or its reason why it will."""
        processes = self._meeting.processes
        if not reason and processes:
            with suppress(TimeoutExpired):
                code = processes[index].wait(NOTICE_S / 2)
                reason = f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        who = f"rank {index + 1} (process {processes[index].pid})" if processes else f"rank {index + 1}"
        what = reason or "its connection was closed"
        self.lose(f"{who} of tensor_parallel = {self.size} was lost: {what}; the model must be loaded again")

    def receive(self, index: int, message: Message) -> None:
        """Take a message of a rank, from the thread of its channel."""
        if message.name == "error":
            self.report(index, str(message.facts))
        elif message.name == "cut off":  # from the others, by the loss of a rank, which is noticed by itself
            self._is_lost.wait(NOTICE_S)
            self.report(index, "it is cut off from the others")
        else:
            self._apart.get(message.name, self._inboxes)[index].put(message)

    def close(self) -> None:
        """End the other ranks, and wait for processes that were started here."""
        with self._lock:
            self._is_closed = True
        self._finalizer()
        # Not by the thread of a channel, which may hold the team a moment longer than the interpreter lives: the end of
        # torch's group in it would abort the process.
        self.group = None

    def forget(self) -> None:
        """Leave the other ranks, in a forked process, to the process that has started them."""
        self._finalizer.detach()


def _read(team: "weakref.ref[Team]", index: int, channel: Channel) -> None:
    while True:
        try:
            message = channel.receive()
        except Exception:  # noqa: BLE001  (a connection that is broken, or was closed here, breaks in several ways)
            if (found := team()) is not None:
                found.report(index, "")
            return
        if (found := team()) is None:
            return
        found.receive(index, message)
        del found


def _end(meeting: Meeting) -> None:
    """Close all channels, by which the other ranks end."""
    for channel in meeting.channels:
        channel.close()
    end(meeting.processes)
    if meeting.folder is not None:
        meeting.folder.cleanup()
