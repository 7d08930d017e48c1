"""The parts of an answer, read out of its text as it comes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol

from tokenmill.engine.outputs import Piece
from tokenmill.text.parts import CallArguments, CallBegin, Part, TextPart, ThinkingPart
from tokenmill.text.tokenizer import Tokenizer

ID_LENGTH = 24


class Reader(Protocol):
    """Reads one text. What it returns depends on the text alone, and not on how it was cut."""

    def push(self, text: str) -> list[Part]:
        """The parts that are certain because of this text."""

    def finish(self) -> list[Part]:
        """The rest, now that no more text comes."""


class PlainReader:
    """All is text."""

    def push(self, text: str) -> list[Part]:
        """See Reader."""
        return [TextPart(text)] if text else []

    def finish(self) -> list[Part]:
        """See Reader."""
        return []


@dataclass(frozen=True)
class Readers:
    """make: a reader for one text. id_prefix, id_length: of the ids that calls get; templates of some families want
    such ones. custom: names of tools that take a text.
    """

    make: Callable[[], Reader] = PlainReader
    id_prefix: str = "call_"
    id_length: int = ID_LENGTH
    custom: frozenset[str] = frozenset()

    def call_id(self, answer: str, *place: int) -> str:
        """The id of a call: of an answer, and of its place in it, so that any server gives it the same one."""
        digest = blake2b(f"{answer}:{place}".encode(), digest_size=32).hexdigest()
        return self.id_prefix + digest[: self.id_length]


@dataclass
class Reading:
    """The text of one continuation, read. texts, thinking: pieces so far. calls: each with its name and the pieces of
    its arguments.
    """

    reader: Reader
    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)

    def count_thinking(self, tokenizer: Tokenizer | None) -> int:
        """The tokens of the thinking, counted by its text."""
        thinking = "".join(self.thinking)
        return len(tokenizer.encode(thinking, False)) if thinking and tokenizer is not None else 0

    def take(self, piece: Piece) -> list[Part]:
        """The parts that a piece brings, each run of one kind as one."""
        new = self.reader.push(piece.text) if piece.text else []
        parts = list(_merged([*new, *(self.reader.finish() if piece.done is not None else [])]))
        for part in parts:
            if isinstance(part, TextPart):
                self.texts.append(part.text)
            elif isinstance(part, ThinkingPart):
                self.thinking.append(part.text)
            elif isinstance(part, CallBegin):
                self.calls.append((part.name, []))
            else:
                self.calls[part.index][1].append(part.text)
        return parts


def _merged(parts: Iterable[Part]) -> Iterable[Part]:
    """The parts without empty ones, those of one kind that follow each other joined."""
    last: Part | None = None
    for part in parts:
        if isinstance(part, CallBegin):
            yield from (last,) if last is not None else ()
            last = part
        elif not part.text:
            continue
        elif isinstance(part, TextPart) and isinstance(last, TextPart):
            last = TextPart(last.text + part.text)
        elif isinstance(part, ThinkingPart) and isinstance(last, ThinkingPart):
            last = ThinkingPart(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and last.index == part.index:
            last = CallArguments(part.index, last.text + part.text)
        else:
            yield from (last,) if last is not None else ()
            last = part
    yield from (last,) if last is not None else ()
