"""What an answer is made of, as it streams: pieces of text, of thinking, and of calls of functions.

Pieces of one kind that follow each other, joined, are the whole; how the text was cut before it was parsed makes no
difference to what is joined.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """A piece of what the model thought before its answer."""

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


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call. arguments: JSON text of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Where a model writes text or thinking in several places, they are joined."""

    text: str
    thinking: str
    calls: list[Call]


def joined(parts: list[Part]) -> Answer:
    """The answer that the parts of a stream make."""
    texts, thinking = [], []
    calls: dict[int, tuple[CallBegin, list[str]]] = {}
    for part in parts:
        if isinstance(part, TextPart):
            texts.append(part.text)
        elif isinstance(part, ThinkingPart):
            thinking.append(part.text)
        elif isinstance(part, CallBegin):
            calls[part.index] = part, []
        else:
            calls[part.index][1].append(part.text)
    made = [Call(begin.id, begin.name, "".join(pieces)) for begin, pieces in calls.values()]
    return Answer("".join(texts), "".join(thinking), made)
