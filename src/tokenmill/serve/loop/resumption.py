"""The record beside a stream, so that another server can go on with it: an extension of ASGI, for callers in process.

A caller that has scope["extensions"][EXTENSION] = Resumption() gets, in each message of a stream under the same name,
an Update: the settings that the stream has beside its body, and the tokens of each piece. It gives what it has noted to
the application of another replica, whose messages begin where the first one's broke off. Nothing of this can come in
over HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXTENSION = "tokenmill.resumption"


@dataclass(frozen=True)
class Written:
    """A piece in a message. index: its continuation. tokens: its tokens. is_last: it ends the continuation. num_cached:
    tokens of the prompt that were found in the cache, for the usage figures.
    """

    index: int
    tokens: tuple[int, ...]
    is_last: bool
    num_cached: int


@dataclass(frozen=True)
class Update:
    """The news that a message brings. begun: id, created, seed and fingerprint of the answer, with its first message.

    is_opened: chunks that come before all pieces were written. is_over: the message ends the stream. has_failed: it is
    about the server, and no other server would say it.
    """

    begun: Mapping[str, Any] = field(default_factory=dict)
    pieces: tuple[Written, ...] = ()
    is_opened: bool = False
    is_over: bool = False
    has_failed: bool = False


@dataclass
class Resumption:
    """A record of all that was written of a stream, empty for a new one. elapsed_s: seconds since it began."""

    begun: dict[str, Any] = field(default_factory=dict)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    num_cached: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    is_opened: bool = False
    elapsed_s: float = 0.0

    def note(self, update: Update) -> None:
        """Add what a message has brought."""
        self.begun |= update.begun
        self.is_opened |= update.is_opened
        for piece in update.pieces:
            self.tokens.setdefault(piece.index, []).extend(piece.tokens)
            self.num_cached[piece.index] = piece.num_cached
            if piece.is_last:
                self.ended.add(piece.index)


def resumption_of(scope: Mapping[str, Any]) -> Resumption | None:
    """Return the record that the caller has given; None if it does not ask for this."""
    found = (scope.get("extensions") or {}).get(EXTENSION)
    return found if isinstance(found, Resumption) else None
