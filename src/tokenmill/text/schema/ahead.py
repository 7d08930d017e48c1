r"""Look-ahead, said by intersections: a rest of the text that begins with what is looked for, and fits what follows.

So `^(?=.*[A-Z])(?!.*\s).{8,}$` is three expressions, of which the first two must match and the third must not. In
terminals of llguidance's Lark they stand beside each other with & and ~.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from tokenmill.text.schema.charset import letters
from tokenmill.text.schema.expression import (
    ANYTHING,
    NOTHING,
    Chain,
    Look,
    Node,
    OneOf,
    PatternError,
    Set,
    Times,
    has_look,
    read,
)
from tokenmill.text.schema.pattern import in_json, of_schema, plain, tree_text, variants

_MOST_TIMES = 8
_LARGEST = 5_000  # nodes
_END_OR_LINE = Times(Set(letters("\n")), 0, 1)  # where $ may be: Python's is before a last line feed as well


@dataclass(frozen=True)
class _Both:
    """The texts of a node that are texts of another node, too; if is_negative, the texts of the node that are not."""

    node: "_Made"
    other: "_Made"
    is_negative: bool


_Made = Node | _Both


class _Place(NamedTuple):
    """Where something stands. at_start: nothing is before it. is_wide: it tells what must not follow."""

    at_start: bool = True
    is_wide: bool = False


def spelled(text: str) -> str:
    """Write the expression of a schema as `of_schema` does; if it looks ahead, as terminals are made of it."""
    if not has_look(read(text)):
        return of_schema(text)
    _made(text)
    return tree_text(text)


def looks(text: str) -> bool:
    """Return whether an expression that `spelled` has written looks ahead, so that it is for terminals."""
    return "(?=" in text or "(?!" in text


def terminal(text: str, *, is_json: bool = True) -> str:
    """Write an expression in Lark for the texts in which an expression matches something: as JSON writes them, without
    their quotes, or as they stand.
    """
    return _lark(_made(text), in_json if is_json else plain)


def whole_terminal(text: str) -> str:
    """Write an expression in Lark for the texts that an expression matches from their first letter to their last."""
    return _lark(_made(text, is_whole=True), plain)


def _made(text: str, is_whole: bool = False) -> _Made:
    found = list[_Made]()
    for (begin, end), node in variants(text).items():
        behind = _before(node, NOTHING if end or is_whole else ANYTHING, _Place(at_start=begin or is_whole))
        found.append(behind if begin or is_whole else _row(ANYTHING, behind))
    made = _choice(found)
    if _size(made) > _LARGEST:
        raise PatternError("its look-ahead has too many parts behind it")
    return made


def _before(node: Node, behind: _Made, place: _Place) -> _Made:
    """Return the texts of a node and what is behind it."""
    if not has_look(node):
        return _row(node, behind)
    if isinstance(node, Look):
        return _Both(behind, _begun(node, place), node.is_negative)
    if isinstance(node, OneOf):
        return _choice([_before(part, behind, place) for part in node.parts])
    if isinstance(node, Chain):
        for number in range(len(node.parts) - 1, -1, -1):
            is_first = all(isinstance(part, Look) for part in node.parts[:number])
            behind = _before(node.parts[number], behind, place._replace(at_start=place.at_start and is_first))
        return behind
    assert isinstance(node, Times)
    if node.most is None or node.most > _MOST_TIMES:
        raise PatternError("look-ahead inside of a repetition is not possible")
    found = behind
    for number in range(node.most - 1, -1, -1):
        again = _before(node.part, found, place._replace(at_start=place.at_start and not number))
        found = _choice([again, behind]) if number >= node.least else again
    return found


def _begun(look: Look, place: _Place) -> _Made:
    """Return the texts that begin with what is looked for."""
    inner, found = place._replace(is_wide=place.is_wide != look.is_negative), list[_Made]()
    for (begin, end), node in variants(look.part).items():
        if begin and not place.at_start:
            raise PatternError("^ in look-ahead is possible at the beginning of the text alone")
        edge = _END_OR_LINE if inner.is_wide else NOTHING
        found.append(_before(node, edge if end else ANYTHING, inner))
    return _choice(found)


def _row(*parts: _Made) -> _Made:
    flat = [each for part in parts for each in (part.parts if isinstance(part, Chain) else (part,))]
    return flat[0] if len(flat) == 1 else Chain(tuple(flat))  # type: ignore[arg-type]  # a row may hold both


def _choice(parts: list[_Made]) -> _Made:
    return parts[0] if len(parts) == 1 else OneOf(tuple(parts))  # type: ignore[arg-type]  # as in _row


def _inner(node: _Made) -> "tuple[_Made, ...]":
    if isinstance(node, _Both):
        return node.node, node.other
    if isinstance(node, Chain | OneOf):
        return node.parts
    return (node.part,) if isinstance(node, Times | Look) else ()


def _size(node: _Made) -> int:
    """Count the nodes, each as often as it is there."""
    known: dict[int, int] = {}

    def size(it: _Made) -> int:
        if id(it) not in known:
            known[id(it)] = 1 + sum(map(size, _inner(it)))
        return known[id(it)]

    return size(node)


def _has_both(node: _Made) -> bool:
    return isinstance(node, _Both) or any(map(_has_both, _inner(node)))


def _lark(node: _Made, of_text: Callable[[Node], str]) -> str:
    if isinstance(node, _Both):
        other = _lark(node.other, of_text)
        return f"({_lark(node.node, of_text)} & {'~' if node.is_negative else ''}{other})"
    if not _has_both(node):
        return f"/{inner}/" if (inner := of_text(node)) else '""'
    assert isinstance(node, Chain | OneOf)  # a repetition has no _Both in it
    if isinstance(node, OneOf):
        return f"({' | '.join(_lark(part, of_text) for part in node.parts)})"
    words = list[str]()
    for has_both, parts in groupby(node.parts, _has_both):
        words += [_lark(part, of_text) for part in (parts if has_both else (Chain(tuple(parts)),))]
    return f"({' '.join(words)})"
