"""The description of a tool call format, from which its grammar and its parser are made."""

import secrets
import string
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenmill.text.tools.functions import Function, ToolChoice
from tokenmill.text.tools.lark import Lark
from tokenmill.text.tools.source import Reading, Source

LETTERS = string.ascii_letters + string.digits


class Taker(Protocol):
    """A taker of what a body reads of one call."""

    def function(self, name: str) -> Function | None:
        """Return the function of this name, if there is one that may be called."""

    def begin(self, name: str, given_id: str | None = None) -> None:
        """Begin a call of this function; its arguments follow. given_id: where the model wrote one."""

    def append(self, text: str, /) -> None:
        """Take a piece of the arguments, which are JSON text."""


class CallBody(Protocol):
    """The form of one call inside its frame. By default it enforces all, and has no control tokens."""

    def rule(self, lark: Lark, function: Function, name: str, before: str = "") -> str:
        """Return an expression for a call of this function after the text `before`. name: of its rules."""

    def unenforced(self, function: Function) -> list[str]:
        """Return what the expression does not enforce of the function's schema, apart from what llguidance does not."""
        return []

    def read(self, source: Source, taker: Taker) -> Reading:
        """Read a call."""

    def first(self, name: str) -> str:
        """Return the beginning of a call of the function of this name."""

    def text(self, name: str, arguments: Mapping[str, Any], number: int = 0) -> str:
        """Write a call as the history shows it. number: of the call in the conversation."""

    def texts(self) -> tuple[str, ...]:
        """Return all texts of its own in which control tokens may stand."""
        return ()


class AnswerReader(Protocol):
    """The parser of an answer, for a format that reads the whole answer in a way of its own."""

    source: Source
    names: Collection[str]  # of the functions that may be called

    def show_text(self, text: str) -> None:
        """Show text."""

    def show_thinking(self, text: str) -> None:
        """Show thinking."""

    def read_up_to(self, marks: Sequence[str], lead: str, show: Callable[[str], None]) -> Generator[None, None, bool]:
        """Show text up to the first mark, without a lead right before it; return whether there is a mark."""

    def read_call(self, body: CallBody, name: str) -> Reading:
        """Read and show a call of this function."""


@dataclass(frozen=True)
class ToolFormat:
    """opening body comma body … closing.

    name: its name in the registry. words: a chat template that shows calls so holds all of them. mark: where it stands
    in an answer the text ends and calls begin; the opening begins with it. White space of a frame is optional to the
    parser. comma: stands between calls inside the frame; None where each call has a frame of its own. lead: stands
    between a text and the frame after it, and between frames. is_alone: there is no mark, and an answer that begins
    with a call has no text. is_single: the chat template shows one call of a message, so no more are asked for. reader,
    answer: read a whole answer, and the expression for one, in the place of the above. numbered: where the model writes
    ids of calls, what they begin with, before the function's name, a colon and a number.
    """

    name: str
    words: tuple[str, ...]
    body: CallBody
    mark: str = ""
    opening: str = ""
    closing: str = ""
    comma: str | None = None
    lead: str = ""
    is_alone: bool = False
    is_single: bool = False
    reader: Callable[[AnswerReader], Generator[None, None, None]] | None = None
    answer: Callable[[Lark, Sequence[Function], ToolChoice, str | None], str] | None = None
    id_prefix: str = "call_"
    id_length: int = 24
    numbered: str = ""

    def marks(self, functions: Iterable[str]) -> list[str]:
        """Return the texts that say that calls of functions of these names begin."""
        return [self.opening + self.body.first(name) for name in functions] if self.is_alone else [self.mark]

    def texts(self) -> tuple[str, ...]:
        """Return all texts of the frame and the body in which control tokens may stand."""
        return self.opening, self.closing, self.comma or "", *self.body.texts()

    def new_id(self) -> str:
        """Make an id for a call."""
        return self.id_prefix + "".join(secrets.choice(LETTERS) for _ in range(self.id_length))

    def text(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
        """Write calls as the history shows them."""
        bodies = [self.body.text(name, arguments, number) for number, (name, arguments) in enumerate(calls)]
        if self.comma is not None:
            return f"{self.opening}{self.comma.join(bodies)}{self.closing}"
        return self.lead.join(f"{self.opening}{body}{self.closing}" for body in bodies)
