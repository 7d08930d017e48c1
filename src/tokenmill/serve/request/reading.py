"""The parts of an answer, read out of its text as it comes."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b

from tokenmill.engine.outputs import Piece
from tokenmill.errors import RequestError
from tokenmill.serve.request.custom_tools import is_json
from tokenmill.text.parts import CallBegin, Part, TextPart, ThinkingPart
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.text.tools.parser import Parser

ID_LENGTH = 24


@dataclass(frozen=True)
class Readers:
    """The way in which answers of a request are read. make: a reader for one text. id_prefix, id_length: of the ids
    that calls get; templates of some families want such ones. is_numbered: the template shows the number that the model
    wrote with a call, so the id has it at its end. custom: names of tools that take a text.
    """

    make: Callable[[], Parser] = lambda: Parser(None)
    id_prefix: str = "call_"
    id_length: int = ID_LENGTH
    is_numbered: bool = False
    custom: frozenset[str] = frozenset()

    def call_id(self, written: str, answer: str, *place: int) -> str:
        """Return the id of a call: made of its answer and its place in it, so that any server gives it the same one.
        written: the id of its CallBegin.
        """
        digest = blake2b(f"{answer}:{place}".encode(), digest_size=32).hexdigest()
        number = written.rpartition(":")[2] if self.is_numbered else ""
        return self.id_prefix + digest[: self.id_length] + (f"_{number}" if number.isdecimal() else "")


@dataclass
class Reading:
    """The text of one continuation, read. texts, thinking: pieces so far. calls: each with its name and the pieces of
    its arguments. ids: of the calls, see CallBegin. num_tokens: that were taken. is_thinking: the thinking may go on.
    """

    reader: Parser
    texts: list[str] = field(default_factory=list)
    thinking: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    num_tokens: int = 0
    is_thinking: bool = False
    _counted: tuple[int, int] = (0, 0)  # pieces of thinking, and their tokens

    def count_thinking(self, tokenizer: Tokenizer | None) -> int:
        """Count the tokens of the thinking by its text, but no more than were taken; 0 while it goes on, lest all of it
        is counted at each piece, and for a text that cannot be encoded.
        """
        if tokenizer is None or self.is_thinking:
            return 0
        if self._counted[0] != len(self.thinking):
            count = 0
            with suppress(RequestError):
                count = len(tokenizer.encode("".join(self.thinking), False, continues=True))
            self._counted = len(self.thinking), count
        return min(self._counted[1], self.num_tokens)

    @property
    def is_cut(self) -> bool:
        """Return whether the last call is not whole."""
        return bool(self.calls) and not is_json("".join(self.calls[-1][1]))

    def take(self, piece: Piece) -> list[Part]:
        """Return the parts that a piece brings, each run of one kind as one."""
        parts = self.reader.push(piece.text, is_last=piece.done is not None)
        self.num_tokens += len(piece.tokens)
        goes_on = isinstance(parts[-1], ThinkingPart) if parts else self.is_thinking
        self.is_thinking = goes_on and piece.done is None
        for part in parts:
            if isinstance(part, TextPart):
                self.texts.append(part.text)
            elif isinstance(part, ThinkingPart):
                self.thinking.append(part.text)
            elif isinstance(part, CallBegin):
                self.calls.append((part.name, []))
                self.ids.append(part.id)
            else:
                self.calls[part.index][1].append(part.text)
        return parts
