"""Reads formats from JSON into nodes, by a table of their types, within limits."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from tokenmill.constrain.tags.check import FormatError
from tokenmill.constrain.tags.fields import Given, given
from tokenmill.constrain.tags.nodes import Node
from tokenmill.constrain.tags.tokens import Tokens

MAX_DEPTH = 64
MAX_FORMATS = 1000
"""How deep formats may be nested, and how many there may be."""


class End(NamedTuple):
    """How the tag around a format ends: with one of these texts, or with a token."""

    texts: tuple[str, ...] = ()
    token: tuple[int, ...] = ()


class Reader:
    """Reads the formats of one structural tag. types: of each, the keys that it may have, and what reads it."""

    def __init__(self, tokens: Tokens, types: Mapping[str, "Type"]) -> None:
        self.tokens, self.num_formats = tokens, 0
        self._types, self._depth, self._times = types, 0, 1
        self._keys = {kind: each.keys for kind, each in types.items()}

    def node(self, place: str, value: Any, end: End) -> Node:
        """The node of a format. FormatError, which names the place in it, for one that is wrong."""
        kind, fields = given(place, value, self._keys)
        self.count(place)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormatError(place, f"is nested more than {MAX_DEPTH} deep")
        made = self._types[kind].read(self, fields, end)
        self._depth -= 1
        return made

    @contextmanager
    def repeating(self, place: str, times: int, most: int) -> Iterator[None]:
        """What is read meanwhile is repeated. FormatError if that is too often, with what is repeated around it."""
        around, self._times = self._times, self._times * times
        if self._times > most:
            raise FormatError(place, f"is repeated {self._times:,} times with what is around it; {most:,} are possible")
        yield
        self._times = around

    def count(self, place: str) -> None:
        """FormatError if there are too many formats and tags."""
        self.num_formats += 1
        if self.num_formats > MAX_FORMATS:
            raise FormatError(place, f"is one of more than {MAX_FORMATS:,} formats and tags")


class Type(NamedTuple):
    """A type of formats."""

    keys: frozenset[str]
    read: Callable[[Reader, Given, End], Node]
