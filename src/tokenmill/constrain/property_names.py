"""`propertyNames` in other words: named properties, or properties by a pattern, which llguidance implements."""

import re
from collections.abc import Mapping
from typing import Any

from tokenmill.constrain.schema_parts import Path, SchemaError, target_of

_TOLD = frozenset("type title description default examples $comment deprecated format $schema".split())
_LENGTHS = ("minLength", "maxLength")
_MOST_REFERENCES = 20
Json = dict[str, Any]


def rewrite(root: Json, path: Path, node: Json) -> None:
    """Say the same of a schema's names by other keywords. SchemaError for what these cannot say.

    A `format` of names is left out.
    """
    names = _resolved(root, (*path, "propertyNames"), node["propertyNames"])
    if not isinstance(names, Mapping) or names.get("type", "string") != "string":
        raise _refusal(path)
    left = names.keys() - _TOLD
    if left and left <= {"enum", "const"}:
        _to_properties(path, node, _texts(names))
    elif left == {"pattern"} and isinstance(pattern := names["pattern"], str):
        _to_patterns(path, node, pattern)
    elif left and left <= set(_LENGTHS) and all(isinstance(names[each], int) for each in left):
        least, most = names.get("minLength", 0), names.get("maxLength", "")
        _to_patterns(path, node, rf"^[\s\S]{{{least},{most}}}$")
    elif left:
        raise _refusal(path)
    node.pop("propertyNames")


def _texts(names: Mapping[str, Any]) -> list[str]:
    """The names that may come."""
    values = names.get("enum", [names.get("const")])
    found = [each for each in values if isinstance(each, str)] if isinstance(values, list) else []
    return [each for each in found if "const" not in names or each == names["const"]]


def _to_properties(path: Path, node: Json, names: list[str]) -> None:
    if node.get("patternProperties"):
        raise SchemaError(path, "the keyword 'propertyNames' is not implemented beside 'patternProperties'")
    others, own = node.get("additionalProperties", True), node.get("properties")
    own = own if isinstance(own, dict) else {}
    known = [name for name in own if name in names]
    added = [name for name in dict.fromkeys(names) if name not in own and others is not False]
    node["properties"] = {name: own.get(name, others) for name in (*known, *added)}
    node["additionalProperties"] = False


def _to_patterns(path: Path, node: Json, pattern: str) -> None:
    if node.get("patternProperties"):
        raise SchemaError(path, "the keyword 'propertyNames' is not implemented beside 'patternProperties'")
    others = node.get("additionalProperties", True)
    try:
        fits = re.compile(pattern).search
    except re.error:
        raise SchemaError(path, f"the names of properties cannot fit the pattern {pattern!r:.100}") from None
    if isinstance(own := node.get("properties"), dict):
        node["properties"] = {name: each for name, each in own.items() if fits(name)}
    node["patternProperties"] = {} if others is False else {pattern: others}
    node["additionalProperties"] = False


def _resolved(root: Json, path: Path, names: Any) -> Any:
    for _ in range(_MOST_REFERENCES):
        if not isinstance(names, Mapping) or "$ref" not in names:
            return names
        _, names = target_of(root, path, names["$ref"])
    raise SchemaError(path, "its references lead nowhere")


def _refusal(path: Path) -> SchemaError:
    return SchemaError(path, "the keyword 'propertyNames' is implemented with an enum, a pattern, or a length alone")
