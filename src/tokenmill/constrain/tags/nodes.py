"""The tree that a format becomes. Its leaves are words, tokens and values; its inner nodes are concatenations, choices
and repetitions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.constrain.tags.words import Word, one_of, one_text, one_word, word_repeated


@dataclass(frozen=True, eq=False)
class Token:
    """Matches one token of the vocabulary: one of `ids`, or, if is_but is set, any token except these. first: the bytes
    with which the matching tokens begin, control tokens left out.
    """

    place: str
    ids: tuple[int, ...]
    is_but: bool = False
    first: frozenset[int] = frozenset()

    def shares(self, other: "Token") -> bool:
        """Whether some token fits both."""
        if self.is_but:
            return other.is_but or not set(other.ids) <= set(self.ids)
        return not set(self.ids) <= set(other.ids) if other.is_but else not set(self.ids).isdisjoint(other.ids)

    @property
    def expr(self) -> str:
        """The token in Lark."""
        return f"<[{'^' if self.is_but else ''}{','.join(map(str, self.ids)) or '*'}]>".replace("^*", "*")


@dataclass(frozen=True, eq=False)
class Value:
    """A value that no regular language describes, such as JSON. body: an expression in Lark. first: the bytes that it
    may begin with. last: a terminal for its last words, if they may be continued. grammar: one that the body names.
    is_json: what llguidance itself makes of two schemas tells their values apart.
    """

    place: str
    body: str
    first: frozenset[int]
    last: str = ""
    may_be_empty: bool = False
    grammar: dict[str, Any] | None = None
    is_json: bool = True


@dataclass(frozen=True, eq=False)
class Concatenation:
    """The concatenation of its parts; the empty text if there are none."""

    parts: tuple["Node", ...] = ()


@dataclass(frozen=True, eq=False)
class Choice:
    """The alternation of its parts."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, eq=False)
class Repetition:
    """A part that is repeated from `least` to `most` times; without limit if most is None."""

    part: "Node"
    least: int
    most: int | None


@dataclass(frozen=True, eq=False)
class Stop:
    """A token that ends the model's text (EOS). Nothing may follow it."""

    place: str


Leaf = Word | Token | Value
Node = Leaf | Stop | Concatenation | Choice | Repetition
NOTHING = Concatenation()


def literal(place: str, text: str) -> Node:
    """The word of a text, or nothing for an empty one."""
    return one_text(place, text) if text else NOTHING


def concatenation(parts: Iterable[Node], *, is_whole: bool = False) -> Node:
    """The concatenation of nodes. Words that touch become one word; is_whole: also where that makes masks cost more."""
    made: list[Node] = []
    for part in parts:
        for each in part.parts if isinstance(part, Concatenation) else (part,):
            last = made[-1] if made else None
            if isinstance(last, Word) and isinstance(each, Word) and _are_joined(last, each, is_whole):
                made[-1] = one_word(last, each)
            else:
                made.append(each)
    return made[0] if len(made) == 1 else Concatenation(tuple(made)) if made else NOTHING


def _are_joined(one: Word, other: Word, is_whole: bool) -> bool:
    """Whether two adjacent words become one. They stay two where the first has an end of its own: that costs less."""
    is_over = one.ends_once and not one.is_literal and not is_whole
    return not (one.is_apart or other.is_apart or is_over)


def apart(node: Node) -> Node:
    """The same node, but that its words are never joined with the words before or after it."""
    if isinstance(node, Concatenation):
        return Concatenation(tuple(map(apart, node.parts)))
    return replace(node, is_apart=True) if isinstance(node, Word) else node


def choice(parts: Sequence[Node]) -> Node:
    """The alternation of nodes. All words among them become one word."""
    flat = [each for part in parts for each in (part.parts if isinstance(part, Choice) else (part,))]
    words = [each for each in flat if isinstance(each, Word) and not each.is_apart]
    others = [each for each in flat if each not in words and each is not NOTHING]
    found = (*([one_of(words)] if words else []), *others)
    made = found[0] if len(found) == 1 else Choice(found) if found else NOTHING
    return repetition(made, 0, 1) if NOTHING in flat else made


def repetition(part: Node, least: int, most: int | None) -> Node:
    """A node repeated from `least` to `most` times."""
    if part is NOTHING or most == 0:
        return NOTHING
    if (least, most) == (1, 1):
        return part
    if isinstance(part, Word) and not part.is_apart:
        return word_repeated(part, least, times(least, most))
    return Repetition(part, least, most)


def times(least: int, most: int | None) -> str:
    """The quantifier in Lark."""
    short = {(0, 1): "?", (0, None): "*", (1, None): "+"}
    return short.get((least, most), f"{{{least},{'' if most is None else most}}}")
