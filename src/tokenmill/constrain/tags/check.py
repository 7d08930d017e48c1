"""Whether llguidance's lexer splits the texts of a format into the words that the format means.

The lexer takes the longest match and never goes back. So all words that may begin at the same position are checked
together: where one of them has ended, no byte that may begin the next word may continue any of them. A format for which
this does not hold is refused, because some texts that fit it could not be generated.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import combinations_with_replacement, product
from typing import NamedTuple

from tokenmill.constrain.room import check_wanted
from tokenmill.constrain.tags import terminals
from tokenmill.constrain.tags.nodes import Choice, Concatenation, Leaf, Node, Repetition, Stop, Token, Value
from tokenmill.constrain.tags.words import MAX_COUNTED, Word
from tokenmill.text.tools.lark import ANYTHING

MAX_GROUPS = 2000
_ASCII = 0x80
ANY_BYTE = frozenset(range(terminals.NUM_BYTES))


class FormatError(Exception):
    """A format is refused. The message names the place in it."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place} {why}")


class Checked(NamedTuple):
    """A node that has passed the check. lazy: the words that become lazy terminals, which end at their shortest match.
    may_force: llguidance may look for forced bytes.
    """

    node: Node
    lazy: frozenset[Word]
    may_force: bool


def check(node: Node) -> Checked:
    """Check that llguidance's lexer can tell the words of a node apart. FormatError, which names the place, if not."""
    try:
        return _Check(node).run()
    except terminals.TerminalError as error:
        raise FormatError("format", f"is more than llguidance can look through ({error}): make it simpler") from None


class _Check:
    """The leaves of a tree, and which may follow which."""

    def __init__(self, node: Node) -> None:
        self._node, self._follow = node, dict[Leaf, set[Leaf]]()
        first, _, _ = self._visit(node)
        self._start = frozenset(first)

    def run(self) -> Checked:
        """Check every group of leaves that may begin at the same position of a text."""
        for leaf in self._follow:
            _check_word(leaf)
        met, waiting = {self._start}, [self._start]
        while waiting:
            for group in self._after(waiting.pop()):
                if group not in met:
                    met.add(group)
                    waiting.append(group)
            if len(met) > MAX_GROUPS:
                raise FormatError("format", f"has more than {MAX_GROUPS:,} places at which something may begin")
        words = [leaf for leaf in self._follow if isinstance(leaf, Word)]
        may_force = not any(self._before_token(word) and word.may_hang and not self._is_lazy(word) for word in words)
        return Checked(self._node, frozenset(filter(self._is_lazy, words)), may_force)

    def _before_token(self, word: Word) -> bool:
        return any(isinstance(leaf, Token) for leaf in self._follow[word])

    def _is_lazy(self, word: Word) -> bool:
        """Whether a word becomes a lazy terminal: its shortest match is then its longest one, too."""
        return bool(word.lazy) or (word.ends_once and word.may_hang and self._before_token(word))

    def _after(self, group: frozenset[Leaf]) -> Iterator[frozenset[Leaf]]:
        """The groups of leaves that may come next. Leaves that may match the same text have one group together."""
        together = {leaf: leaf for leaf in group}  # each → another that may end with it

        def root(leaf: Leaf) -> Leaf:
            while together[leaf] is not leaf:
                leaf = together[leaf]
            return leaf

        for leaf in group:
            self._check_end(leaf)
        for one, other in _pairs(sorted(group, key=lambda leaf: leaf.place)):
            check_wanted()
            self._check_pair(one, other)
            if one is not other:
                self._check_pair(other, one)
                if root(one) is not root(other) and _may_be_equal(one, other):
                    together[root(one)] = root(other)
        following: dict[Leaf, set[Leaf]] = {}
        for leaf in group:
            following.setdefault(root(leaf), set()).update(self._follow[leaf])
        yield from map(frozenset, following.values())

    def _visit(self, node: Node) -> tuple[set[Leaf], set[Leaf], bool]:
        """The leaves that may come first, those that may come last, and whether there may be none."""
        if isinstance(node, Concatenation):
            return self._visit_concatenation(node)
        if isinstance(node, Choice):
            found = [self._visit(part) for part in node.parts]
            firsts, lasts, empties = zip(*found, strict=True)
            return set().union(*firsts), set().union(*lasts), any(empties)
        if isinstance(node, Repetition):
            first, last, is_empty = self._visit(node.part)
            if node.most != 1:
                self._connect(last, first)
            return first, last, is_empty or node.least == 0
        assert not isinstance(node, Stop), node.place
        self._follow.setdefault(node, set())
        return {node}, {node}, isinstance(node, Word | Value) and may_be_empty(node)

    def _visit_concatenation(self, node: Concatenation) -> tuple[set[Leaf], set[Leaf], bool]:
        first, last, is_empty = set[Leaf](), set[Leaf](), True
        for part in node.parts:
            next_first, next_last, may_lack = self._visit(part)
            self._connect(last, next_first)
            first |= next_first if is_empty else set()
            last = next_last | last if may_lack else next_last
            is_empty &= may_lack
        return first, last, is_empty

    def _connect(self, last: Collection[Leaf], first: Collection[Leaf]) -> None:
        for leaf in last:
            self._follow[leaf].update(first)

    def _next_bytes(self, leaf: Leaf) -> frozenset[int]:
        """The first bytes of the leaves that may follow a leaf."""
        return frozenset().union(*map(_first, self._follow[leaf]))

    def _check_end(self, leaf: Leaf) -> None:
        if isinstance(leaf, Value) and leaf.last and (after := self._next_bytes(leaf)):
            asked = f"({leaf.last}) & ({leaf.last} {set_of(after)} /{ANYTHING}/)"
            # Another word of a grammar may come as well.
            is_open = not leaf.is_json and after & terminals.facts(leaf.last)[0]
            if is_open or not terminals.is_nothing(asked):
                raise FormatError(leaf.place, f"may go on where what follows it begins: {_ADVICE}")

    def _check_pair(self, one: Leaf, other: Leaf) -> None:
        """FormatError if `other` may match further where `one` has ended and the leaf after `one` begins."""
        if isinstance(one, Word) and isinstance(other, Word):
            if self._may_go_on(one, other):
                where = "" if one is other else f" ({other.place})"
                raise FormatError(one.place, f"may end where a text could as well go on{where}: {_ADVICE}")
            return
        if one is other:
            return
        if isinstance(one, Token) and isinstance(other, Token):
            if one.expr != other.expr and one.shares(other):
                raise FormatError(one.place, f"and {other.place} may be the same token at the same place: {_ONE}")
            return
        if isinstance(one, Value) and isinstance(other, Value) and one.is_json and other.is_json:
            return
        if _first(one) & _first(other):
            raise FormatError(one.place, f"and {other.place} may stand at the same place and begin alike: {_ADVICE}")

    def _may_go_on(self, one: Word, other: Word) -> bool:
        is_cut = self._is_lazy(one) and one is not other  # as soon as the one ends, whatever follows
        after = ANY_BYTE if is_cut else self._next_bytes(one)
        if _are_apart(one, other) or (one is other and one.ends_once) or not after:
            return False
        if one.mark and one.family == other.family and not other.mark:
            return False
        if one.is_literal and other.is_literal:
            left = other.head[len(one.head) :].encode()
            return bool(left) and left[0] in after
        some = f"({one.expr})" if not may_be_empty(one) else rf"(({one.expr}) & /(.|\n)+/)"
        asked = f"({other.expr}) & ({some} {set_of(after)} /{ANYTHING}/)"
        return not terminals.is_nothing(asked, one.named, other.named)


_COUNT = "more are possible where these are the ends of the tag around it, and it is all that stands in the tag"
_ONE = "llguidance takes it for one of them alone; name tokens that are no others' here"
_ADVICE = "llguidance reads the longest word, and cannot tell; put a mark between them that neither may hold"


def may_be_empty(leaf: Word | Value) -> bool:
    """Whether a leaf matches the empty text."""
    if isinstance(leaf, Value):
        return leaf.may_be_empty
    return not (leaf.head or leaf.mark) and terminals.facts(leaf.expr, leaf.named)[1]


def _first(leaf: Leaf) -> frozenset[int]:
    if isinstance(leaf, Word):
        if leaf.head:
            return frozenset(head.encode()[0] for head in leaf.heads)
        return ANY_BYTE if leaf.mark else terminals.facts(leaf.expr, leaf.named)[0]
    return leaf.first


def _pairs(leaves: Sequence[Leaf]) -> Iterator[tuple[Leaf, Leaf]]:
    """Yield each pair of leaves that may match texts with a common prefix, once, and each leaf paired with itself."""
    heads: dict[str, list[Leaf]] = {}
    others = list[Leaf]()
    for leaf in leaves:
        is_headed = isinstance(leaf, Word) and leaf.head
        for head in leaf.heads if isinstance(leaf, Word) and is_headed else ():
            heads.setdefault(head, []).append(leaf)
        others += [] if is_headed else [leaf]
    lengths, met = sorted({len(head) for head in heads}), set[frozenset[Leaf]]()
    for head, ours in heads.items():
        for length in lengths[: bisect_right(lengths, len(head))]:
            for pair in product(ours, heads.get(head[:length], ())):
                if (both := frozenset(pair)) not in met:
                    met.add(both)
                    yield pair
    yield from combinations_with_replacement(others, 2)
    yield from product(others, dict.fromkeys(leaf for several in heads.values() for leaf in several))


def _check_word(leaf: Leaf) -> None:
    if not isinstance(leaf, Word) or leaf.texts or leaf.mark or leaf.lazy:
        return
    if leaf.counted > MAX_COUNTED:
        raise FormatError(
            leaf.place, f"counts more than {MAX_COUNTED} characters in a text that excludes some: {_COUNT}"
        )
    if terminals.is_nothing(leaf.expr, leaf.named):
        raise FormatError(leaf.place, "is a part that no text fits")


def _are_apart(one: Word, other: Word) -> bool:
    """Whether no text of one word is a prefix of a text of the other, nor equal to it."""
    is_other_mark = one.mark and other.mark and one.family == other.family and one.mark != other.mark
    alike = (a.startswith(b) or b.startswith(a) for a, b in product(one.heads, other.heads))
    return bool(is_other_mark) or not any(alike)


def _may_be_equal(one: Leaf, other: Leaf) -> bool:
    """Whether both leaves may match the same text."""
    if isinstance(one, Word) and isinstance(other, Word):
        if _are_apart(one, other):
            return False
        if one.is_literal and other.is_literal:
            return one.head == other.head
        return not terminals.is_nothing(f"({one.expr}) & ({other.expr})", one.named, other.named)
    if isinstance(one, Token) and isinstance(other, Token):
        return one.shares(other)
    return isinstance(one, Value) and isinstance(other, Value)


def set_of(numbers: frozenset[int]) -> str:
    """An expression for the characters that begin with these bytes; all that are not ASCII, if one of them is."""
    ascii_ = "".join(rf"\x{number:02x}" for number in sorted(numbers) if number < _ASCII)
    others = r"\u{80}-\u{10ffff}" if any(number >= _ASCII for number in numbers) else ""
    return f"/[{ascii_}{others}]/"
