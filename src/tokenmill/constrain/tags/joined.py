"""Rewrites a tree of nodes so that each word is joined to the words that may follow it; its texts stay the same.

In <a>…</a>, an optional <b>…</b>, and a value behind <c>, the first word may end where it goes on. Joined, there are
the words <a>…</a><c> and <a>…</a><b>…</b><c>, and each of them ends in one place.
"""

from collections.abc import Sequence

from tokenmill.constrain.room import check_wanted
from tokenmill.constrain.tags.nodes import Choice, Concatenation, Node, Repetition, choice, concatenation, repetition
from tokenmill.constrain.tags.words import Word, one_word

MAX_JOINED = 1000


class TooMany(Exception):
    """The rewritten tree would be too large."""


def joined(node: Node) -> Node:
    """The rewritten tree. TooMany if it is too large."""
    return _Joiner().node(node)


class _Joiner:
    def __init__(self) -> None:
        self._num_joined = 0

    def node(self, node: Node) -> Node:
        """Rewrite a node: adjacent words in each of its concatenations become one word."""
        if isinstance(node, Concatenation):
            return self._concatenation(node.parts)
        if isinstance(node, Choice):
            return choice([self.node(part) for part in node.parts])
        if isinstance(node, Repetition):
            return repetition(self.node(node.part), node.least, node.most)
        return node

    def _concatenation(self, parts: Sequence[Node]) -> Node:
        for number, part in enumerate(parts[:-1]):
            if isinstance(part, Word):
                return concatenation([*map(self.node, parts[:number]), self._before(part, parts[number + 1 :])])
        return concatenation(map(self.node, parts))

    def _before(self, word: Word, rest: Sequence[Node]) -> Node:
        """A word followed by these nodes, joined to those of their words that may come next."""
        if not rest:
            return word
        check_wanted()
        self._num_joined += 1
        if self._num_joined > MAX_JOINED:
            raise TooMany
        head, *tail = rest
        if isinstance(head, Word) and not (word.is_apart or head.is_apart):
            return self._before(one_word(word, head), tail)
        if isinstance(head, Concatenation):
            return self._before(word, [*head.parts, *tail])
        if isinstance(head, Choice):
            return choice([self._before(word, [part, *tail]) for part in head.parts])
        if isinstance(head, Repetition):
            return self._before_repetition(word, head, tail)
        return concatenation([word, head, self._concatenation(tail)])

    def _before_repetition(self, word: Word, head: Repetition, tail: Sequence[Node]) -> Node:
        most = None if head.most is None else head.most - 1
        if head.least:
            return self._before(word, [head.part, repetition(head.part, head.least - 1, most), *tail])
        without = self._before(word, tail)
        if most is not None:
            return choice([without, self._before(word, [head.part, repetition(head.part, 0, most), *tail])])
        again = repetition(self.node(head.part), 0, None)
        return choice([without, concatenation([self._before(word, [head.part]), again, self._concatenation(tail)])])
