"""The keywords of JSON Schema: enforced ones, refused ones, and annotations.

By the standard an unknown keyword, and an unknown format, allows no text less. Both are taken, and a warning tells of
them.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from tokenmill.constrain.other_words import WORDS as UNEVALUATED
from tokenmill.constrain.schema_parts import LISTS, MAPS, SINGLE, Path, Reached, SchemaError, is_never, pointer
from tokenmill.text.schema.unique import values_of

COUNTS = frozenset(f"{end}{what}" for end in ("min", "max") for what in ("Length", "Items", "Properties"))
"""Keywords whose value counts something."""

READ = COUNTS.union(
    *(MAPS, LISTS, SINGLE),
    """type const enum required $ref $defs definitions $schema $id id pattern format uniqueItems multipleOf
    minimum maximum exclusiveMinimum exclusiveMaximum""".split(),
)
"""Keywords that llguidance implements."""

HARMLESS = frozenset(
    """title description default examples example deprecated readOnly writeOnly $comment $anchor $vocabulary
    contentEncoding contentMediaType contentSchema nullable discriminator xml externalDocs propertyOrdering
    markdownDescription enumDescriptions enumNames""".split()
)
"""Keywords that allow no text less: they describe, or say (`nullable`) that more is allowed. Names that begin with x-
are like them."""

NOTHING: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(UNEVALUATED, (True, {})),
    "propertyNames": (True, {}, {"type": "string"}),
    "contains": (),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
    "not": (False,),
    **dict.fromkeys(("if", "then", "else", "minContains", "maxContains"), ()),
    **dict.fromkeys(("disallow", "divisibleBy", "extends"), ()),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor"), ()),
}
"""Keywords of some draft that are not implemented → their values that ask for nothing, with which they are left out.

`not`, `propertyNames`, `unevaluatedProperties` and `unevaluatedItems` have values that are said by other keywords: see
schema.py.
"""

BESIDE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("then", "else"), ("if",)),
    "if": ("then", "else"),
    **dict.fromkeys(("minContains", "maxContains"), ("contains",)),
}
"""Keywords that say nothing by themselves → keywords, one of which has to stand beside them."""

FORMATS = frozenset("date-time time date duration email hostname ipv4 ipv6 uri uuid".split())
"""Formats that llguidance implements."""

_NOT_UNIQUE = "that the items differ, 'uniqueItems', is not enforced: it is where their values are few, as of an enum"
IDS = ("$id", "id")
_URI = re.compile(r"[!#$%&'()*+,/:;=?@\[\]A-Za-z0-9._~-]*")
"""The characters of an id. With a space in it, as in griptape's "Output Format", it names nothing that a reference
could lead to."""

MOST_TOLD = 20  # annotations of one schema
_SHOWN = 60  # characters of a word
_NAMING = {"enum", "const", "pattern"}  # keywords that tell names exactly


def asks_nothing(key: str, value: Any) -> bool:
    """Return whether a keyword that is not implemented has a value with which every text fits."""
    return any(value == each and type(value) is type(each) for each in NOTHING[key])


def is_annotation(node: Mapping[str, Any], key: str) -> bool:
    """Return whether a keyword of a schema allows no text less, as far as the standard tells."""
    value = node[key]
    if _is_null(key, value) or (key in BESIDE and all(node.get(each) is None for each in BESIDE[key])):
        return True
    if key == "format":
        return isinstance(value, str) and value not in FORMATS
    if key in IDS:
        return isinstance(value, str) and not _URI.fullmatch(value)
    return key not in READ and key not in NOTHING


def _is_null(key: str, value: Any) -> bool:
    """Return whether a keyword is null, as Go writes an empty list, and other programs an absent value."""
    return value is None and key != "const" and (key in READ or key in NOTHING)


def told(reached: Reached) -> list[str]:
    """Write a sentence for each keyword and each format that is not known, with the first place at which it stands.
    Nothing is told of a keyword inside of which a reference leads: it holds definitions.
    """
    found: dict[str, list[Path]] = {}
    holding = reached.outer_places()
    for path, node in reached.nodes.items():
        for key in node if isinstance(node, dict) else ():
            for sentence in _sentences(node, key) if (*path, key) not in holding else ():
                found.setdefault(sentence, []).append(path)
        if is_passed_over(node, reached.nodes[()]):
            found.setdefault(_NOT_UNIQUE, []).append(path)
    first = sorted((_order(min(paths, key=_order)), len(paths), text) for text, paths in found.items())
    said = [f"at {place}{_more(number - 1)}: {text}" for (_, place), number, text in first]
    left = len(said) - MOST_TOLD
    return said if left <= 0 else [*said[:MOST_TOLD], f"so it is with {left} further keywords and formats"]


def is_passed_over(node: Any, root: Any) -> bool:
    """Return whether the items of a list should differ, and nothing sees to it. root: where references lead."""
    if not isinstance(node, dict) or node.get("uniqueItems") is not True:
        return False
    most = node.get("maxItems")
    return values_of(node, root) is None and not (isinstance(most, int) and most < 2)


def _order(path: Path) -> tuple[int, str]:
    return len(path), pointer(path)


def _sentences(node: Mapping[str, Any], key: str) -> Iterator[str]:
    value = node[key]
    if key == "propertyNames" and isinstance(value, dict) and "format" in value and not value.keys() & _NAMING:
        yield f"the format {str(value['format'])[:_SHOWN]!r} of names is not enforced"
    if not is_annotation(node, key) or key in HARMLESS or key in IDS or (key.startswith("x-") and key != "x-guidance"):
        return
    if _is_null(key, value):
        yield f"{key!r} is null, so it is not enforced"
        return
    if key == "format":
        yield f"the format {value[:_SHOWN]!r} is not known, so it is not enforced"
        return
    if key in BESIDE:
        yield f"{key!r} stands without {' or '.join(map(repr, BESIDE[key]))}, so it is not enforced"
        return
    near = get_close_matches(key, [*READ, *HARMLESS, *NOTHING], n=1)
    hint = f"; is {near[0]!r} meant?" if near else ""
    yield f"{key[:_SHOWN]!r} is no keyword of JSON Schema, so it is not enforced{hint}"


def _more(number: int) -> str:
    return f" and {number} more place{'s' * (number > 1)}" if number else ""


def refused(path: Path, node: Any) -> Iterator[tuple[str, SchemaError]]:
    """Yield the keywords of a schema that are not implemented, each with the error for it."""
    for key, value in node.items() if isinstance(node, dict) else ():
        is_said = key in ("propertyNames", *UNEVALUATED) or (key == "not" and is_never(node))  # by other keywords
        if key == "uniqueItems" and not isinstance(value, bool):
            yield key, SchemaError(path, f"the keyword 'uniqueItems' is true or false, and not {value!r:.50}")
        if key in NOTHING and not (is_said or asks_nothing(key, value) or is_annotation(node, key)):
            yield key, SchemaError(path, f"the keyword {key!r} is not implemented")
