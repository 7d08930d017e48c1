"""The seam between a gate and its replicas: replicas.py fills it with Ray Serve, and tests with engines in process; and
the replicas that routers know.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Set
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

from tokenmill.serve.loop.resumption import Resumption


class ReplicaLost(Exception):
    """A replica has died or cannot be reached, or is to end and has not answered. Another replica may answer."""


class AllBusy(Exception):
    """No replica takes another request. retry_after_s: when to come again."""

    def __init__(self, retry_after_s: int = 1) -> None:
        super().__init__("the server is full: every replica has as many requests as it takes")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Call:
    """One request to a replica. scope: of ASGI, without what cannot be sent to another process.

    key: calls of one key go to the same replica, as long as it takes them. avoid: replicas to go past, unless there is
    no other. written: what was written of a stream; None for any other answer.
    """

    scope: dict[str, Any]
    body: bytes
    key: str
    avoid: Set[str] = field(default_factory=frozenset)
    written: Resumption | None = None


@dataclass(frozen=True)
class Part:
    """Messages of ASGI that have come together, and the replica that has sent them."""

    replica: str
    messages: list[Message]


_known: dict[str, frozenset[str]] = {}


def note_replicas(fleet: str, names: frozenset[str]) -> None:
    """Set the replicas of a fleet that take requests. Routers have threads of their own."""
    _known[fleet] = names


def known_replicas(fleet: str) -> frozenset[str]:
    """Return the replicas of a fleet, as the routers of this process know them; none before its router has begun."""
    return _known.get(fleet, frozenset())


class Fleet(ABC):
    """The replicas of one model."""

    async def start(self) -> None:  # noqa: B027  (a fleet may need nothing)
        """Begin to know the replicas."""

    @property
    @abstractmethod
    def replicas(self) -> Set[str]:
        """The names of the replicas that take requests, without any that is to end."""

    @abstractmethod
    def answer(self, call: Call) -> AsyncGenerator[Part, None]:
        """Send a request and yield its answer. Closed early, it is cancelled. ReplicaLost or AllBusy."""

    @abstractmethod
    async def ask_all(self, scope: dict[str, Any]) -> dict[str, bytes]:
        """Return the bodies that a GET gives, by replica."""
