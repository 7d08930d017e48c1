"""A connection between rank 0 and another rank, for commands, reports and rows: each message has a name, JSON and
tensors.

Nothing that arrives is executed: JSON and safetensors hold values alone. The connection also tells that a process has
ended, since the system closes it then.
"""

import json
import socket
from collections.abc import Mapping
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any, NamedTuple

from safetensors.torch import load, save
from torch import Tensor

from tokenmill.process import forget_in_child


class Message(NamedTuple):
    """A message. facts: any value that JSON can hold."""

    name: str
    facts: Any = None
    tensors: Mapping[str, Tensor] = {}


class Channel:
    """One end of a connection, over a socket that it takes."""

    def __init__(self, connected: socket.socket) -> None:
        self._connection = Connection(connected.detach())
        self._sending = Lock()
        forget_in_child(self)

    def send(self, name: str, facts: Any = None, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Send a message; OSError if the other process has ended."""
        head = json.dumps([name, facts]).encode()
        body = save({key: value.contiguous() for key, value in tensors.items()}) if tensors else b""
        with self._sending:
            self._connection.send_bytes(len(head).to_bytes(8, "little") + head + body)

    def receive(self) -> Message:
        """Wait for a message; EOFError or OSError if the other process has ended."""
        found = self._connection.recv_bytes()
        end = 8 + int.from_bytes(found[:8], "little")
        name, facts = json.loads(found[8:end])
        return Message(name, facts, load(found[end:]) if end < len(found) else {})

    def forget(self) -> None:
        """Close a forked process's copy, which would keep the connection open after the end of this process."""
        self._connection.close()

    def close(self) -> None:
        """Close the connection; the other process, and a thread that waits here for a message, read its end."""
        try:
            with socket.socket(fileno=self._connection.fileno()) as connected:
                connected.shutdown(socket.SHUT_RDWR)
                connected.detach()
        except OSError:
            pass  # it was closed before, by either side
