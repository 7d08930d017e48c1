"""A connection between rank 0 and another rank, for commands, reports and rows: each message has a name, JSON and
tensors, and may have descriptors of files.

Nothing that arrives is executed: JSON and safetensors hold values alone. The connection also tells that a process has
ended, since the system closes it then.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from tokenmill.process import forget_in_child


class Message(NamedTuple):
    """A message. facts: any value that JSON can hold. shared: descriptors of files, which its reader has to close."""

    name: str
    facts: Any = None
    tensors: Mapping[str, Tensor] = {}
    shared: Sequence[int] = ()


class Channel:
    """One end of a connection, over a socket that it takes."""

    def __init__(self, connected: socket.socket) -> None:
        self._connection = Connection(connected.detach())
        self._sending = Lock()
        forget_in_child(self)

    def send(
        self,
        name: str,
        facts: Any = None,
        tensors: Mapping[str, Tensor] | None = None,
        shared: Sequence[int] = (),
    ) -> None:
        """Send a message; OSError if the other process has ended. shared: descriptors, only to a process of this
        machine.
        """
        head = json.dumps([name, facts, len(shared)]).encode()
        body = save({key: value.contiguous() for key, value in tensors.items()}) if tensors else b""
        with self._sending:
            self._connection.send_bytes(len(head).to_bytes(8, "little") + head + body)
            if shared:
                with self._socket() as connected:
                    socket.send_fds(connected, [b"x"], shared)

    def receive(self) -> Message:
        """Wait for a message; EOFError or OSError if the other process has ended."""
        found = self._connection.recv_bytes()
        end = 8 + int.from_bytes(found[:8], "little")
        name, facts, num_shared = json.loads(found[8:end])
        shared: Sequence[int] = ()
        if num_shared:
            with self._socket() as connected:
                shared = socket.recv_fds(connected, 1, num_shared)[1]
        return Message(name, facts, load(found[end:]) if end < len(found) else {}, shared)

    def forget(self) -> None:
        """Close a forked process's copy, which would keep the connection open after the end of this process."""
        self._connection.close()

    def close(self) -> None:
        """Close the connection; the other process, and a thread that waits here for a message, read its end."""
        with suppress(OSError), self._socket() as connected:  # it may have been closed before, by either side
            connected.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def _socket(self) -> Iterator[socket.socket]:
        """Give the socket of the connection, which stays open."""
        connected = socket.socket(fileno=self._connection.fileno())
        try:
            yield connected
        finally:
            connected.detach()
