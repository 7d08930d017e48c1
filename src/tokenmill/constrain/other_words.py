"""Keywords in other words, which llguidance has: `unevaluatedProperties`, `unevaluatedItems` and `propertyNames`.

Where no other schema speaks of the same value (`allOf`, `anyOf`, `oneOf`, `$ref`), the first two say what
`additionalProperties` and further `items` say. Beside such schemas `"unevaluatedProperties": false` closes an object as
others are closed by default (closing.py): to the properties for which there are schemas; of a choice, to the properties
of the schema that is chosen. `propertyNames` becomes named properties, or properties by a pattern.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenmill.constrain.closing import CHOICES, Json, seal, two_choices
from tokenmill.constrain.room import check_wanted
from tokenmill.constrain.schema_parts import Path, Reached, SchemaError, reach, target_of

OBJECT = "unevaluatedProperties"
WORDS = (OBJECT, "unevaluatedItems")
_FOLLOWED = ("allOf", *CHOICES, "$ref")
_PARTS = (*_FOLLOWED, "if", "dependentSchemas", "$dynamicRef", "$recursiveRef")
"""Keywords whose schemas speak of the same value."""

_TOLD = frozenset("type title description default examples $comment deprecated format $schema".split())
_LENGTHS = ("minLength", "maxLength")
_MOST_REFERENCES = 20


def rewrite_unevaluated(schema: Json, left_out: list[str] | None = None) -> None:
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
    """Return whether an object is to be closed to what other schemas of it say."""
    return isinstance(node, dict) and node.get(OBJECT) is False and any(key in node for key in _FOLLOWED)


def _above(found: Reached, lower: Iterable[Path], same: Iterable[Path]) -> set[Path]:
    """Return the places of the schemas that have a schema at a `lower` place as a part which speaks of the same value;
    and the `same` places, with the schemas that have them as such parts.
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


def rewrite_names(root: Json, path: Path, node: Json) -> None:
    """Say the same of a schema's names by other keywords. SchemaError for what these cannot say.

    A `format` of names is left out.
    """
    names = _resolved(root, (*path, "propertyNames"), node["propertyNames"])
    if not isinstance(names, Mapping) or names.get("type", "string") != "string":
        raise _names_refusal(path)
    left = names.keys() - _TOLD
    if left and left <= {"enum", "const"}:
        _to_properties(path, node, _texts(names))
    elif left == {"pattern"} and isinstance(pattern := names["pattern"], str):
        _to_patterns(path, node, pattern)
    elif left and left <= set(_LENGTHS) and all(isinstance(names[each], int) for each in left):
        least, most = names.get("minLength", 0), names.get("maxLength", "")
        _to_patterns(path, node, rf"^[\s\S]{{{least},{most}}}$")
    elif left:
        raise _names_refusal(path)
    node.pop("propertyNames")


def _texts(names: Mapping[str, Any]) -> list[str]:
    values = names.get("enum", [names.get("const")])
    found = [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
    return [each for each in found if "const" not in names or each == names["const"]]


def _to_properties(path: Path, node: Json, names: list[str]) -> None:
    others, own = _others_of(path, node), node.get("properties")
    own = own if isinstance(own, dict) else {}
    known = [name for name in own if name in names]
    added = [name for name in dict.fromkeys(names) if name not in own and others is not False]
    node["properties"] = {name: own.get(name, others) for name in (*known, *added)}
    node["additionalProperties"] = False


def _to_patterns(path: Path, node: Json, pattern: str) -> None:
    others = _others_of(path, node)
    try:
        fits = re.compile(pattern).search
    except re.error:
        raise SchemaError(path, f"the names of properties cannot fit the pattern {pattern!r:.100}") from None
    if isinstance(own := node.get("properties"), dict):
        node["properties"] = {name: each for name, each in own.items() if fits(name)}
    node["patternProperties"] = {} if others is False else {pattern: others}
    node["additionalProperties"] = False


def _others_of(path: Path, node: Json) -> Any:
    """Return the schema of properties that are not named. SchemaError where there are patterns of names, too."""
    if node.get("patternProperties"):
        raise SchemaError(path, "the keyword 'propertyNames' is not implemented beside 'patternProperties'")
    return node.get("additionalProperties", True)


def _resolved(root: Json, path: Path, names: Any) -> Any:
    for _ in range(_MOST_REFERENCES):
        if not isinstance(names, Mapping) or "$ref" not in names:
            return names
        _, names = target_of(root, path, names["$ref"])
    raise SchemaError(path, "its references lead nowhere")


def _names_refusal(path: Path) -> SchemaError:
    return SchemaError(path, "the keyword 'propertyNames' is implemented with an enum, a pattern, or a length alone")
