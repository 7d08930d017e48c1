r"""The texts that an expression is about, whole or wherever it matches, in the syntax of llguidance.

llguidance has no ^ and $ in the midst of an expression. Here each stands for what it says: nothing is before it, or
behind it. So an expression becomes up to four, by which edges of the text it demands.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import groupby, product

from tokenmill.text.schema.charset import ESCAPED, Ranges, members, quoted, ranges_of, without, written
from tokenmill.text.schema.expression import (
    ANYTHING,
    NOTHING,
    Chain,
    Edge,
    Look,
    Node,
    OneOf,
    PatternError,
    Property,
    Set,
    Times,
    has_look,
    read,
)

Variants = dict[tuple[bool, bool], Node]
"""The parts of an expression, by whether they demand the beginning of the text, and its end."""

_KEPT = 32
_MOST_EDGES = 100
_NUL = ((0, 0),)


def whole(text: str) -> Node:
    """Make the texts that an expression matches from their first letter to their last. PatternError: see read."""
    return _choice([*_variants(_without_look(text)).values()])


def anywhere(text: str) -> Node:
    """Return the texts in which an expression matches something."""
    return _anywhere(_without_look(text))


def _anywhere(tree: Node) -> Node:
    """Put anything around each variant but at the edges that it demands."""
    return _choice(
        [
            Chain((*(() if begin else (ANYTHING,)), node, *(() if end else (ANYTHING,))))
            for (begin, end), node in _variants(tree).items()
        ]
    )


def variants(text: str | Node) -> Variants:
    """Divide an expression into Variants; look-ahead is a part that is empty. text: an expression, or its tree."""
    return _variants(_read(text) if isinstance(text, str) else text)


def tree_text(text: str) -> str:
    """Write an expression in the syntax of llguidance as far as that has it, with edges and look-ahead as they are."""
    return plain(_read(text))


def of_schema(text: str) -> str:
    """Write the `pattern` that says to llguidance what this one says to ECMA-262 and Python. U+0000 is in no set: where
    a set has each control character and not both the quote and the backslash, llguidance lets these through.
    """
    found = _variants(_without_look(text))
    if len(found) == 1:
        ((begin, end), node), *_ = found.items()
        inner = _written(node, _without_nul, _property_without_nul)
        return f"{'^' * begin}{f'(?:{inner})' if isinstance(node, OneOf) else inner}{'$' * end}"
    inner = _written(anywhere(text), _without_nul, _property_without_nul)
    return f"^(?:{inner})$"


def plain(node: Node) -> str:
    """Write an expression of a text as it stands."""
    return _written(node, written, lambda it: _property(it, ()))


def in_json(node: Node) -> str:
    """Write an expression of a text as it stands in JSON, without its quotes."""
    return _written(node, quoted, lambda it: _property(it, ESCAPED))


def _read(text: str) -> Node:
    """Make the tree of an expression, in which only so many edges may be."""
    node = read(text)
    if (number := _num_edges(node)) > _MOST_EDGES:
        raise PatternError(f"it has {number:,} of ^ and $; {_MOST_EDGES} are possible")
    return node


def _without_look(text: str) -> Node:
    """Make the tree of an expression that does not look ahead."""
    if has_look(tree := _read(text)):
        raise PatternError("look-ahead, (?= or (?!, is possible in the pattern of a text or in regex, and not of names")
    return tree


def _num_edges(node: Node) -> int:
    parts = node.parts if isinstance(node, Chain | OneOf) else (node.part,) if isinstance(node, Times | Look) else ()
    return int(isinstance(node, Edge)) + sum(map(_num_edges, parts))


@lru_cache(512)
def _without_nul(ranges: Ranges) -> str:
    return written(without(ranges, _NUL))


def _property_without_nul(it: Property) -> str:
    return _property(it, _NUL)


def _property(it: Property, left_out: Ranges) -> str:
    """Write a set with properties, without some characters, so that read() reads it again."""
    if it.negated:
        return f"[^{members(ranges_of((*it.ranges, *left_out)))}{''.join(it.names)}]"
    parts = [written(without(it.ranges, left_out))] if it.ranges else []
    for name in it.names:
        opposite = f"\\{name[1].swapcase()}{name[2:]}"
        parts.append(f"[^{members(left_out)}{opposite}]")
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def _written(
    node: Node,
    of_set: Callable[[Ranges], str],
    of_property: Callable[[Property], str],
    edges: tuple[str, str] = ("^", "$"),
) -> str:
    if isinstance(node, Set | Property):
        return of_set(node.ranges) if isinstance(node, Set) else of_property(node)
    if isinstance(node, Edge):
        return edges[not node.is_begin]
    if isinstance(node, Chain):
        parts = ((part, _written(part, of_set, of_property, edges)) for part in node.parts)
        return "".join(f"(?:{inner})" if isinstance(part, OneOf) else inner for part, inner in parts)
    if isinstance(node, OneOf):
        return "|".join(_written(part, of_set, of_property, edges) for part in node.parts)
    inner = _written(node.part, of_set, of_property, edges)
    if isinstance(node, Look):
        return f"(?{'!' if node.is_negative else '='}{inner})"
    return _repeated(node, inner)


def _repeated(node: Times, inner: str) -> str:
    if not inner:
        return ""
    marks = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    least, most = node.least, node.most
    mark = marks.get((least, most)) or f"{{{least}{'' if most == least else f',{most}' if most is not None else ','}}}"
    return f"{inner if isinstance(node.part, Set) and inner.startswith('[') else f'(?:{inner})'}{mark}"


def _choice(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else OneOf(tuple(nodes)) if nodes else Set(())


def _variants(node: Node) -> Variants:
    if not _has_edge(node):
        return {(False, False): node}
    if isinstance(node, Edge):
        return {(node.is_begin, not node.is_begin): NOTHING}
    if isinstance(node, Chain):
        found: Variants = {(False, False): NOTHING}
        for has_edge, parts in groupby(node.parts, _has_edge):
            for part in parts if has_edge else (Chain(tuple(parts)),):
                found = _joined(found, _variants(part))
        return found
    if isinstance(node, OneOf):
        return _union([_variants(part) for part in node.parts])
    assert isinstance(node, Times)
    if node.most != 1:
        raise PatternError("^ or $ inside of a repetition is not possible")
    return _union([_variants(node.part), {(False, False): NOTHING}] if node.least == 0 else [_variants(node.part)])


def _joined(first: Variants, second: Variants) -> Variants:
    """Put one behind the other: nothing is before what demands the beginning, nor behind what demands the end."""
    found = list[Variants]()
    for ((begin, early_end), one), ((late_begin, end), other) in product(first.items(), second.items()):
        if (late_begin and not _may_be_empty(one)) or (early_end and not _may_be_empty(other)):
            continue
        parts = (_emptied(one) if late_begin else one, _emptied(other) if early_end else other)
        kept = [each for part in parts for each in (part.parts if isinstance(part, Chain) else (part,))]
        found.append({(begin or late_begin, early_end or end): kept[0] if len(kept) == 1 else Chain(tuple(kept))})
    return _union(found)


def _union(several: list[Variants]) -> Variants:
    found: dict[tuple[bool, bool], list[Node]] = {}
    for each in several:
        for edges, node in each.items():
            found.setdefault(edges, []).append(node)
    return {edges: _choice(list(dict.fromkeys(nodes))) for edges, nodes in found.items()}


def _may_be_empty(node: Node) -> bool:
    if isinstance(node, Chain):
        return all(map(_may_be_empty, node.parts))
    if isinstance(node, OneOf):
        return any(map(_may_be_empty, node.parts))
    return isinstance(node, Edge | Look) or (isinstance(node, Times) and (node.least == 0 or _may_be_empty(node.part)))


def _emptied(node: Node) -> Node:
    """Return what a node demands where it is empty, as it may be: its look-ahead."""
    if not has_look(node) or isinstance(node, Look):
        return node if isinstance(node, Look) else NOTHING
    if isinstance(node, Chain):
        return Chain(tuple(map(_emptied, node.parts)))
    if isinstance(node, OneOf):
        return _choice([_emptied(part) for part in node.parts if _may_be_empty(part)])
    assert isinstance(node, Times)
    return NOTHING if node.least == 0 else _emptied(node.part)


def _has_edge(node: Node) -> bool:
    if isinstance(node, Chain | OneOf):
        return any(map(_has_edge, node.parts))
    return isinstance(node, Edge) or (isinstance(node, Times) and _has_edge(node.part))


def matches(pattern: str, text: str) -> bool:
    """Return whether an expression matches something in a text."""
    return _compiled(pattern).fullmatch(text) is not None


@lru_cache(_KEPT)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(_written(_anywhere(_read(pattern)), _python, _refuse_property, (r"\A", r"\Z")))


def _python(ranges: Ranges) -> str:
    """Write a set in the syntax of Python's library."""
    if not ranges:
        return "(?!)"
    pairs = (rf"\U{first:08x}-\U{last:08x}" for first, last in ranges)
    return f"[{''.join(pairs)}]"


def _refuse_property(it: Property) -> str:
    raise PatternError(f"{it.names[0]} is not possible for names of properties here")
