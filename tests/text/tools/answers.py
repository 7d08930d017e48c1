"""What the parts of an answer are when they are joined; answers that are cut into pieces and parsed."""

from dataclasses import dataclass

from tokenmill.text.parts import CallBegin, TextPart, ThinkingPart


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


def joined(parts):
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


def pushed(parser, text, cut=None):
    """The parts that a parser makes of a text; cut: Random that cuts it."""
    parts, at = [], 0
    while at < len(text):
        length = cut.choice([1, 1, 2, 3, 8, 40]) if cut else len(text)
        parts += parser.push(text[at : at + length])
        at += length
    return parts + parser.finish()


def answer(parts):
    """Text, thinking, and the calls as pairs of name and arguments."""
    found = joined(parts)
    return found.text, found.thinking, [(call.name, call.arguments) for call in found.calls]
