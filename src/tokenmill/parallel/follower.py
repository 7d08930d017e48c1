"""Another rank's side: it takes commands from rank 0, and ends with it.

A thread reads the channel, so that the process ends at once with rank 0, whatever it computes or waits for: no rank
outlives the engine.
"""

import os
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NoReturn

import torch

from tokenmill.parallel.channel import Channel, Message
from tokenmill.parallel.collectives import Group
from tokenmill.parallel.rendezvous import Meeting


class Follower:
    """A rank other than rank 0."""

    def __init__(self, meeting: Meeting) -> None:
        self.rank, self._meeting = meeting.rank, meeting
        (self._channel,) = meeting.channels
        self._commands = SimpleQueue[Message]()
        threading.Thread(target=_read, args=(self._channel, self._commands), daemon=True).start()

    def agree(self, facts: Any, device: torch.device) -> tuple[Any, Group]:
        """Tell rank 0 the facts that must be the same on every rank. If they are, learn rank 0's decisions, and make
        the process group.
        """
        self.send("facts", facts)
        message = self.next()
        assert message.name == "join", f"{message.name} came in the place of join"
        meeting = self._meeting
        return message.facts, Group(meeting.open_store(), self.rank, meeting.size, device, meeting.address)

    def next(self) -> Message:
        """Wait for the next command."""
        return self._commands.get()

    def send(self, name: str, facts: Any = None, tensors: Any = None) -> None:
        """Send a message to rank 0; end, if it has ended."""
        try:
            self._channel.send(name, facts, tensors)
        except OSError:
            leave()

    def wait_for_end(self) -> NoReturn:
        """Tell rank 0 that another rank is lost, and end when rank 0, which will know which rank, ends the group."""
        self.send("cut off")
        while True:
            self.next()

    def fail(self, error: BaseException) -> NoReturn:
        """Tell rank 0 why this rank ends, and end."""
        self.send("error", str(error) or repr(error))
        leave(1)


def _read(channel: Channel, commands: "SimpleQueue[Message]") -> None:
    while True:
        try:
            commands.put(channel.receive())
        except (EOFError, OSError):
            leave()


def leave(code: int = 0) -> NoReturn:
    """End the process, from any thread, without waiting for computations."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None
            stream.flush()
    os._exit(code)
