"""Removes the tokens that end the model's text (EOS) from a tree of nodes. The engine ends a text at such a token, so
that whatever stands before it is a whole text, if nothing has to follow the token.
"""

from collections.abc import Iterable, Sequence

from tokenmill.constrain.tags.check import may_be_empty
from tokenmill.constrain.tags.nodes import (
    NOTHING,
    Choice,
    Concatenation,
    Node,
    Repetition,
    Stop,
    choice,
    concatenation,
    repetition,
)
from tokenmill.constrain.tags.words import Word


def without_stops(node: Node) -> Node | None:
    """The node of the same texts, each cut before its first EOS token. None if no text of it may end."""
    return _choice(_parts(node))


def _parts(node: Node) -> tuple[Node | None, Node | None]:
    """The node of the texts that have no EOS token, and the node of those that one ends; None for no texts."""
    if isinstance(node, Stop):
        return None, NOTHING
    if isinstance(node, Concatenation):
        return _of_concatenation(node.parts)
    if isinstance(node, Choice):
        wholes, ends = zip(*map(_parts, node.parts), strict=True)
        return _choice(wholes), _choice(ends)
    if isinstance(node, Repetition):
        return _of_repetition(node)
    return node, None


def _choice(nodes: Iterable[Node | None]) -> Node | None:
    found = [node for node in nodes if node is not None]
    return choice(found) if found else None


def _of_repetition(node: Repetition) -> tuple[Node | None, Node | None]:
    whole, stopped = _parts(node.part)
    if whole is None:
        return NOTHING if node.least == 0 else None, stopped if node.least <= 1 else None
    again = repetition(whole, max(node.least - 1, 0), None if node.most is None else node.most - 1)
    return repetition(whole, node.least, node.most), None if stopped is None else concatenation([again, stopped])


def _of_concatenation(parts: Sequence[Node]) -> tuple[Node | None, Node | None]:
    before: list[Node] | None = []
    ends = list[Node]()
    for number, part in enumerate(parts):
        whole, stopped = _parts(part)
        if before is not None and stopped is not None and all(map(_may_lack, parts[number + 1 :])):
            ends.append(concatenation([*before, stopped]))
        before = None if before is None or whole is None else [*before, whole]
    return None if before is None else concatenation(before), _choice(ends)


def _may_lack(node: Node) -> bool:
    """Whether a node matches the empty text."""
    if isinstance(node, Concatenation):
        return all(map(_may_lack, node.parts))
    if isinstance(node, Choice):
        return any(map(_may_lack, node.parts))
    if isinstance(node, Repetition):
        return node.least == 0 or _may_lack(node.part)
    return isinstance(node, Word) and may_be_empty(node)
