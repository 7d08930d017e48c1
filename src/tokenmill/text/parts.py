"""The parts of an answer, as it streams: pieces of text, of thinking, and of calls of functions.

Pieces of one kind that follow each other, joined, are the whole; how the text was cut before it was parsed makes no
difference to it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """A piece of the model's thinking before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins. index: 0 for the answer's first call. id: unique; results of the call name it."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments of the call `index`: JSON text, an object when all pieces are joined."""

    index: int
    text: str


Part = TextPart | ThinkingPart | CallBegin | CallArguments
