"""The rules of a grammar in GBNF as rules and words for llguidance, which mean the same.

llguidance reads the longest word that fits and never goes back; in GBNF any way counts in which the characters of a
text can be read. So whatever refers to nothing that refers to itself is one word, as long as none of its texts, with a
character behind it that may follow, is the beginning of another word that may stand there, or of a longer text of its
own. Words for which this does not hold are taken apart, at most into characters.
"""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    LiteralNode,
    RegexNode,
    RepetitionNode,
    RuleRefNode,
    SequenceNode,
)

from tokenmill.constrain import terminals
from tokenmill.constrain.room import check_wanted
from tokenmill.text.tools.lark_rules import in_order

Rules = dict[str, ASTNode]
NOTHING = '""'
MAX_WORD, MAX_ROUNDS, MAX_PAIRS, MAX_ASKED, MAX_VISITS = 20_000, 60, 20_000, 300, 5_000
"""Characters of a word, rounds in which words are taken apart, pairs of words that may stand at one place, questions to
llguidance, and rules that are looked at, each as often as it is. Beyond these, all words are taken apart."""
_CHARACTER = re.compile(r"\\x[0-9A-Fa-f]{2}|\\.|[^\\]", re.DOTALL)


class Ends(NamedTuple):
    """The words that may come first and last in a part of a grammar, and whether there may be none."""

    first: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    may_be_empty: bool = False


def lark_of(rules: Rules) -> str:
    """Write the grammar in Lark. ValueError for one that no text with an end fits."""
    kept = _ending(rules)
    words = _Words(kept)
    for _ in range(MAX_ROUNDS):
        check_wanted()
        try:
            if not (apart := words.confused()):
                break
        except terminals.TerminalError:
            apart = None
        if apart is None:
            words.takes_all_apart = True
            break
        words.apart |= apart
    else:
        words.takes_all_apart = True
    return words.lark()


def _ending(rules: Rules) -> Rules:
    """Return the rules without parts that no text with an end fits. ValueError if that is all, or a rule is missing."""
    users: dict[str, set[str]] = {}
    for name, whole in rules.items():
        for each in _references(whole):
            users.setdefault(each.name, set()).add(name)
    if missing := [name for name in ("root", *users) if name not in rules]:
        raise ValueError(f"there is no rule {missing[0]!r}")
    ending, left = set[str](), list(reversed(rules))
    while left:
        if (name := left.pop()) not in ending and _kept(rules[name], ending) is not None:
            ending.add(name)
            left += users.get(name, ())
    if "root" not in ending:
        raise ValueError("no text with an end fits it: the rule 'root' needs itself, or a rule that does, without end")
    found, waiting = Rules(), ["root"]
    while waiting:
        if (name := waiting.pop()) not in found and (node := _kept(rules[name], ending)) is not None:
            found[name] = node
            waiting += [each.name for each in _references(node)]
    return found


def _references(node: ASTNode) -> Iterator[RuleRefNode]:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, RuleRefNode):
            yield node
        waiting += node.children()


def _kept(node: ASTNode, ending: set[str]) -> ASTNode | None:
    """Return a part without choices that have no end; None if it has none itself."""
    if isinstance(node, RuleRefNode):
        return node if node.name in ending else None
    if isinstance(node, RepetitionNode):
        if (inner := _kept(node.node, ending)) is None or node.max_times == 0:
            return SequenceNode([]) if node.min_times == 0 else None
        return RepetitionNode(inner, node.min_times, node.max_times)
    if isinstance(node, SequenceNode):
        parts = [_kept(each, ending) for each in node.nodes]
        known = [each for each in parts if each is not None]
        return SequenceNode(known) if len(known) == len(parts) else None
    if isinstance(node, AlternativeNode):
        found = [kept for each in node.alternatives if (kept := _kept(each, ending)) is not None]
        return AlternativeNode(found) if found else None
    return node


class _Words:
    """The parts of a grammar that are words. apart: the words that are taken apart, by their expressions."""

    def __init__(self, rules: Rules) -> None:
        self.apart, self.takes_all_apart = set[str](), False
        order = in_order({name: [each.name for each in _references(node)] for name, node in rules.items()})
        self._rules = {name: rules[name] for name in (*order, *rules)}
        self._recursive = rules.keys() - set(order)
        self._expressions: dict[int, str | None] = {}
        self._ends: dict[str, Ends] = {}
        self._follow: dict[str, set[str]] = {}
        self._answers: dict[str, bool] = {}
        for name in order:
            self._expression(rules[name])

    def lark(self) -> str:
        """Write the grammar in Lark."""
        names = {name: "start" if name == "root" else f"rule_{number}" for number, name in enumerate(self._rules)}
        words, lines = dict[str, str](), list[str]()

        def written(node: ASTNode) -> str:
            if (word := self._word(node)) is not None:
                return words.setdefault(word, f"WORD_{len(words)}")
            if isinstance(node, RuleRefNode):
                return names[node.name]
            return _written(node, [written(each) for each in _inner(node)])

        lines += [f"{names[name]}: {written(self._rules[name])}" for name in self._reached()]
        return "\n".join(["%llguidance {}", *lines, *(f"{name}: {word}" for word, name in words.items())]) + "\n"

    def _reached(self) -> list[str]:
        """Return the rules that are more than a word."""
        found, waiting = dict[str, None](), ["root"]
        while waiting:
            if (name := waiting.pop()) not in found:
                found[name] = None
                waiting += [each.name for each in self._used(self._rules[name])]
        return list(found)

    def confused(self) -> set[str] | None:
        """Find words that llguidance would not tell apart as the grammar means them; None if there are too many."""
        places = self._places()
        if places is None:
            return None
        found = set[str]()
        for place in places:
            check_wanted()
            for one in place:
                after = frozenset().union(*(terminals.facts(word)[0] for word in self._follow[one]))
                if not after:
                    continue
                for other in place:
                    if self._goes_on(one, other, after):
                        found.add(other)
        return found

    def _places(self) -> set[frozenset[str]] | None:
        """Find the words that may stand at one place. Where two may be the same text, what follows either may come."""
        reached = self._reached()[::-1]  # most rules stand before the rules that they refer to
        self._ends, self._follow = dict.fromkeys(reached, Ends()), {}
        before, num_visits = None, 0
        while before != (self._ends, self._follow):
            if (num_visits := num_visits + len(reached)) > MAX_VISITS:
                return None
            before = dict(self._ends), {word: set(each) for word, each in self._follow.items()}
            for name in reached:
                self._ends[name] = self._visit(self._rules[name])
        found, waiting, num_pairs = set[frozenset[str]](), [self._ends["root"].first], 0
        while waiting:
            if (place := waiting.pop()) in found or not place:
                continue
            found.add(place)
            if (num_pairs := num_pairs + len(place) ** 2) > MAX_PAIRS:
                return None
            for one in place:
                alike = [other for other in place if one == other or self._may_be_equal(one, other)]
                waiting.append(frozenset().union(*(self._follow[each] for each in alike)))
        return found

    def _visit(self, node: ASTNode) -> Ends:
        if (word := self._word(node)) is not None:
            self._follow.setdefault(word, set())
            if len(self._follow) > MAX_ASKED:
                raise terminals.TerminalError("it has too many words")
            return Ends(frozenset([word]), frozenset([word]), terminals.facts(word)[1])
        if isinstance(node, RuleRefNode):
            return self._ends[node.name]
        inner = [self._visit(each) for each in _inner(node)]
        if isinstance(node, AlternativeNode):
            firsts, lasts, empties = zip(*inner, strict=True)
            return Ends(frozenset().union(*firsts), frozenset().union(*lasts), any(empties))
        if isinstance(node, RepetitionNode):
            if node.max_times != 1:
                self._connect(inner[0].last, inner[0].first)
            return inner[0]._replace(may_be_empty=inner[0].may_be_empty or node.min_times == 0)
        first, last, is_empty = frozenset[str](), frozenset[str](), True
        for each in inner:
            self._connect(last, each.first)
            first |= each.first if is_empty else frozenset()
            last = each.last | last if each.may_be_empty else each.last
            is_empty &= each.may_be_empty
        return Ends(first, last, is_empty)

    def _connect(self, last: Iterable[str], first: Iterable[str]) -> None:
        for word in last:
            self._follow[word].update(first)

    def _word(self, node: ASTNode) -> str | None:
        """Return the expression of a part that is one word; None for any other."""
        expression = self._expression(node)
        if expression in (None, NOTHING) or expression in self.apart:
            return None
        return None if self.takes_all_apart and not _is_character(expression) else expression

    def _expression(self, node: ASTNode) -> str | None:
        """Return the expression of a part that does not lead to rules which refer to themselves; None for any other."""
        if isinstance(node, LiteralNode):  # some are made anew each time
            return f'"{node.value}"'
        if id(node) not in self._expressions:
            self._expressions[id(node)] = self._new_expression(node)
        return self._expressions[id(node)]

    def _new_expression(self, node: ASTNode) -> str | None:
        if isinstance(node, RuleRefNode):
            return None if node.name in self._recursive else self._expression(self._rules[node.name])
        if isinstance(node, RegexNode):
            return f"/{node.rx}/"
        inner = [self._expression(each) for each in node.children()]
        known = [each for each in inner if each is not None]
        if len(known) < len(inner) or sum(map(len, known)) > MAX_WORD:
            return None
        return known[0] if len(known) == 1 and not isinstance(node, RepetitionNode) else _written(node, known)

    def _used(self, node: ASTNode) -> Iterator[RuleRefNode]:
        """Yield the references of a part that are not inside of words."""
        if self._word(node) is not None:
            return
        if isinstance(node, RuleRefNode):
            yield node
        for each in _inner(node):
            yield from self._used(each)

    def _may_be_equal(self, one: str, other: str) -> bool:
        one, other = sorted((one, other))
        if not terminals.facts(one)[0] & terminals.facts(other)[0]:
            return terminals.facts(one)[1] and terminals.facts(other)[1]
        return not self._is_nothing(f"({one}) & ({other})")

    def _goes_on(self, one: str, other: str, after: frozenset[int]) -> bool:
        """Return whether a text of one word, with one of these bytes behind it, begins a text of the other."""
        if _is_character(other) or not terminals.facts(one)[0] & terminals.facts(other)[0]:
            return False
        some = f"({one})" if not terminals.facts(one)[1] else rf"(({one}) & /(.|\n)+/)"
        return not self._is_nothing(f"({other}) & ({some} {terminals.set_of(after)} /(.|\n)*/)")

    def _is_nothing(self, asked: str) -> bool:
        if asked not in self._answers:
            if len(self._answers) == MAX_ASKED:
                raise terminals.TerminalError("it has too many words")
            self._answers[asked] = terminals.is_nothing(asked)
        return self._answers[asked]


def _inner(node: ASTNode) -> list[ASTNode]:
    """Return the parts of a part; the parts of a text are its characters."""
    if isinstance(node, LiteralNode):
        characters = _CHARACTER.findall(node.value)
        return [LiteralNode(each) for each in characters] if len(characters) > 1 else []
    return node.children()


def _written(node: ASTNode, inner: list[str]) -> str:
    """Write a part whose own parts are written so."""
    if isinstance(node, AlternativeNode):
        return f"({' | '.join(inner)})"
    if isinstance(node, RepetitionNode):
        most = "" if node.max_times is None else node.max_times
        sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.min_times, node.max_times))
        return f"({inner[0]}){sign or f'{{{node.min_times},{most}}}'}"
    return f"({' '.join(inner)})" if inner else NOTHING


def _is_character(expression: str) -> bool:
    """Return whether a word is a character, or one of a set."""
    if expression.startswith('"'):
        return len(_CHARACTER.findall(expression[1:-1])) == 1
    return expression.startswith("/") and expression.count("/", 1) == 1 and expression.endswith("]/")
