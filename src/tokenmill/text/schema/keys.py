"""Terminals for the names of properties that a schema does not name."""

from collections.abc import Collection
from itertools import product

from tokenmill.text.schema.charset import ANY, Ranges, letters, quoted, ranges_of, without
from tokenmill.text.schema.expression import Chain, Node, OneOf, Times
from tokenmill.text.schema.pattern import anywhere, in_json, matches

NAME = f'/"(?:{quoted(ANY)})*"/'
_PROBES = ("key", "Zq", "7", "_x", "é-ü", "a b", "x.y", "$", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
_BUCKETS = {2: 8, 3: 4}
"""How many names must differ → by how many sets of first and last letters they are told apart."""


def of_pattern(pattern: str, named: Collection[str], others: Collection[str]) -> str:
    """A terminal for names that fit a pattern and none of the others; empty where only `named` ones might be left."""
    node = anywhere(pattern)
    if any(matches(pattern, name) for name in named) and not _is_endless(node):
        return ""
    if not any(matches(pattern, name) and name not in named for name in _PROBES) and any(
        matches(other, name) for other in others for name in _PROBES
    ):
        return ""
    return _but(f'/"(?:{in_json(node)})"/', [name for name in named if matches(pattern, name)], others)


def of_others(named: Collection[str], patterns: Collection[str]) -> str:
    """A terminal for names that are none of these and fit no pattern; empty where patterns leave none."""
    if all(any(matches(pattern, name) for pattern in patterns) for name in _PROBES):
        return ""
    return _but(NAME, named, patterns)


def classes(number: int) -> list[str]:
    """Terminals that divide names by their first and last letters. number: how many names must differ, 2 or 3."""
    sets = _buckets(_BUCKETS[number])
    made = []
    for (at, first), (end, last) in product(enumerate(sets), repeat=2):
        rest = f"(?:(?:{quoted(ANY)})*{last})" + ("?" if at == end else "")
        made.append(f'/"{first}{rest}"/')
    return made


def _buckets(number: int) -> list[str]:
    codes = [code for code in range(0x20, 0x7F) if code not in b'"\\']
    sets: list[Ranges] = [ranges_of((code, code) for code in codes if code % number == each) for each in range(number)]
    sets[0] = ranges_of((*sets[0], *without(ANY, ranges_of((code, code) for code in codes))))
    return [f"(?:{quoted(each)})" for each in sets]


def _but(terminal: str, named: Collection[str], patterns: Collection[str]) -> str:
    taken = ["".join(quoted(letters(each)) for each in name) for name in named] + [
        in_json(anywhere(each)) for each in patterns
    ]
    return f'{terminal} & ~/"(?:{"|".join(taken)})"/' if taken else terminal


def _is_endless(node: Node) -> bool:
    """Whether there are names without end that fit, so that some are not named."""
    if isinstance(node, Times):
        return node.most is None or _is_endless(node.part)
    return isinstance(node, Chain | OneOf) and any(map(_is_endless, node.parts))
