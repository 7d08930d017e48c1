"""One way to write calls: the description from which the grammar of calls and their parser come."""

import secrets
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.text.tools.functions import Function
from tokenmill.text.tools.lark import Lark
from tokenmill.text.tools.source import Reading, Source

LETTERS = string.ascii_letters + string.digits


class Taker(Protocol):
    """Takes what a body reads of one call."""

    def function(self, name: str) -> Function | None:
        """The function of this name, if there is one that may be called."""

    def begin(self, name: str) -> None:
        """The call is of this function; its arguments follow."""

    def append(self, text: str, /) -> None:
        """A piece of the arguments, which are JSON text."""


class Body(Protocol):
    """How one call is written inside its frame."""

    def rule(self, lark: Lark, function: Function, name: str) -> str:
        """An expression for a call of this function; names of new rules begin with `name`."""

    def read(self, source: Source, taker: Taker) -> Reading:
        """Read a call."""

    def text(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the history shows it."""

    def texts(self) -> tuple[str, ...]:
        """All texts of its own in which control tokens may stand."""


@dataclass(frozen=True)
class ToolFormat:
    """opening body comma body … closing.

    name: that of the registry. words: a chat template that shows calls so holds all of them. opening: begins with
    the mark at which the text ends and calls begin; its white space is optional to the parser, as everywhere in a
    frame. comma: stands between calls inside the frame; None where each call has a frame of its own. lead: stands
    between a text and the frame after it, and between frames. is_alone: nothing but calls is in an answer, so that the
    mark counts at the beginning only.
    """

    name: str
    words: tuple[str, ...]
    body: Body
    opening: str
    closing: str
    comma: str | None = None
    lead: str = ""
    is_alone: bool = False
    id_prefix: str = "call_"
    id_length: int = 24

    def marks(self, functions: Sequence[Function]) -> list[str]:
        """The texts that say that calls begin."""
        return [self.opening.split()[0]]

    def texts(self) -> tuple[str, ...]:
        """All texts of the frame and the body in which control tokens may stand."""
        return self.opening, self.closing, self.comma or "", *self.body.texts()

    def new_id(self) -> str:
        """An id for a call."""
        return self.id_prefix + "".join(secrets.choice(LETTERS) for _ in range(self.id_length))

    def text(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Calls as the history shows them."""
        bodies = [self.body.text(name, arguments) for name, arguments in calls]
        if self.comma is not None:
            return f"{self.opening}{self.comma.join(bodies)}{self.closing}"
        return self.lead.join(f"{self.opening}{body}{self.closing}" for body in bodies)
