"""`unevaluatedProperties` and `unevaluatedItems` in other words, which llguidance implements.

Where no other schema speaks of the same value (`allOf`, `anyOf`, `oneOf`, `$ref`), they say what `additionalProperties`
and further `items` say. Beside such schemas `"unevaluatedProperties": false` closes an object as others are closed by
default (closing.py): to the properties for which there are schemas, of a choice to those of the one that is chosen.
"""

from collections.abc import Iterable
from typing import Any

from tokenmill.constrain.closing import CHOICES, seal, two_choices
from tokenmill.constrain.room import check_wanted
from tokenmill.constrain.schema_parts import Path, Reached, SchemaError, reach

OBJECT = "unevaluatedProperties"
WORDS = (OBJECT, "unevaluatedItems")
_FOLLOWED = ("allOf", *CHOICES, "$ref")
_PARTS = (*_FOLLOWED, "if", "dependentSchemas", "$dynamicRef", "$recursiveRef")
"""Keywords whose schemas speak of the same value."""

Json = dict[str, Any]


def rewrite(schema: Json, left_out: list[str] | None = None) -> None:
    """Say the same by other keywords. SchemaError for what these cannot say.

    left_out: takes what the errors say, where the keywords are to be left out instead.
    """
    for path, node in reach(schema).nodes.items():
        for word in WORDS if isinstance(node, dict) else ():
            if isinstance(node.get(word), dict | bool) and not (word == OBJECT and _is_waiting(node)):
                _rewrite_one(path, node, word, left_out)
    while _close_some(schema, left_out):  # what is copied may have others in it
        check_wanted()


def _close_some(schema: Json, left_out: list[str] | None) -> bool:
    """Have the keyword said by additionalProperties for the objects that have it, and return whether some had it."""
    found = reach(schema)
    waiting = {path: node for path, node in found.nodes.items() if _is_waiting(node)}
    if not waiting:
        return False
    torn = _above(found, waiting, two_choices(schema, found.nodes))
    for path in [each for each in waiting if each in torn]:
        _refuse(path, OBJECT, "where two choices name properties, or a part of the value has it, too", left_out)
        waiting.pop(path).pop(OBJECT)
    seal(schema, waiting.values())
    return True


def _rewrite_one(path: Path, node: Json, word: str, left_out: list[str] | None) -> None:
    """Have one keyword said by another. One that allows anything stays, since it opens an object (closing.py)."""
    beside = next((key for key in _PARTS if key in node), None)
    if node[word] in (True, {}):
        return
    others = node.pop(word)
    if beside:
        _refuse(path, word, f"beside {beside!r}", left_out)
        return
    rest = "additionalItems" if isinstance(node.get("items"), list) else "items"
    node.setdefault("additionalProperties" if word == OBJECT else rest, others)


def _is_waiting(node: Any) -> bool:
    """Whether an object is to be closed to what other schemas of it say."""
    return isinstance(node, dict) and node.get(OBJECT) is False and any(key in node for key in _FOLLOWED)


def _above(found: Reached, lower: Iterable[Path], same: Iterable[Path]) -> set[Path]:
    """The places of the schemas of which one at the `lower` places is a part that speaks of the same value, and those
    at the `same` places, with the schemas of which they are such parts.
    """
    wholes: dict[Path, list[Path]] = {}
    for path in found.nodes:
        if len(path) > 1 and path[-2] in _FOLLOWED and isinstance(path[-1], int):
            wholes.setdefault(path, []).append(path[:-2])
    for path, target in found.targets.items():
        wholes.setdefault(target, []).append(path)
    left = [*same, *(whole for path in lower for whole in wholes.get(path, ()))]
    above = set(left)
    while left:
        for whole in wholes.get(left.pop(), ()):
            if whole not in above:
                above.add(whole)
                left.append(whole)
    return above


def _refuse(path: Path, word: str, where: str, left_out: list[str] | None) -> None:
    refusal = SchemaError(path, f"the keyword {word!r} is not implemented {where}")
    if left_out is None:
        raise refusal
    left_out.append(str(refusal))
