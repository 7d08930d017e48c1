"""A JSON schema before llguidance reads it: every keyword is known, and some text that fits it has an end.

llguidance passes over keywords that it does not know; they are refused here, and so are those of the standard that it
does not implement, by their place. Parts that nothing refers to are not read, as there.
"""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from tokenmill.constrain.schema_parts import LISTS, MAPS, SINGLE, Path, SchemaError, finite, reach
from tokenmill.text.schema.expression import PatternError
from tokenmill.text.schema.spelled import spelled

_READ = {
    *MAPS,
    *LISTS,
    *SINGLE,
    *("type", "const", "enum", "required", "$ref", "$defs", "definitions", "$schema", "$id", "id", "pattern", "format"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
"""Keywords that llguidance implements."""

_HARMLESS = frozenset(
    """title description default examples example deprecated readOnly writeOnly $comment $anchor $vocabulary
    contentEncoding contentMediaType contentSchema nullable discriminator xml externalDocs propertyOrdering
    markdownDescription enumDescriptions enumNames""".split()
)
"""Keywords that allow no text less: they describe, or say (`nullable`) that more is allowed. Names that begin with x-
are like them."""

_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
    "contains": (),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), ({},)),
    **dict.fromkeys(("not", "if", "then", "else", "minContains", "maxContains"), ()),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef", "$dynamicAnchor", "$recursiveAnchor"), ()),
}
"""Keywords that are not implemented → their values that ask for nothing, with which they are left out."""


def read_schema(schema: dict[str, Any] | bool) -> dict[str, Any]:
    """The schema as llguidance is to read it, without parts that no text with an end fits; true is that of any value.

    SchemaError for one that is refused.
    """
    if schema is True:
        return {}
    found = reach(schema)
    for path, node in found.nodes.items():
        _check_keywords(path, node)
    endless = found.nodes.keys() - finite(found)
    if () in endless:
        why = ", because it needs itself" if endless & found.targets.keys() else ""
        raise SchemaError(max(endless, key=len), f"no text with an end fits this part{why}")
    dropped = {
        (*path, key) for path, node in found.nodes.items() if isinstance(node, dict) for key in _NOTHING if key in node
    }
    made: dict[str, Any] = _rebuilt(schema, (), endless, dropped, found.nodes)
    return made


def _rebuilt(
    value: Any, path: Path, endless: Collection[Path], dropped: Collection[Path], nodes: Collection[Path]
) -> Any:
    """A value of JSON with false in `endless` places, without `dropped` ones, and with the schemas at `nodes` as
    llguidance is to read them.
    """
    if path in endless:
        return False
    if isinstance(value, dict):
        inner = ((key, (*path, key), each) for key, each in value.items())
        made = {key: _rebuilt(each, at, endless, dropped, nodes) for key, at, each in inner if at not in dropped}
        return _spelled(path, made) if path in nodes else made
    if isinstance(value, list):
        return [_rebuilt(each, (*path, number), endless, dropped, nodes) for number, each in enumerate(value)]
    return value


def _spelled(path: Path, schema: dict[str, Any]) -> dict[str, Any]:
    try:
        return spelled(schema)
    except PatternError as error:
        raise SchemaError(path, str(error)) from None


def parts_of(schema: dict[str, Any]) -> dict[Path, dict[str, Any]]:
    """The parts of a schema as schemas by themselves, with its definitions; inner ones first, the whole last."""
    named: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
    nodes = reach(schema).nodes
    paths = sorted((path for path, node in nodes.items() if path and isinstance(node, dict)), key=len, reverse=True)
    return {path: {**named, **nodes[path]} for path in paths[:_MOST_TRIED]} | {(): schema}


_MOST_TRIED = 300  # each of which is compiled to find what is wrong


def _check_keywords(path: Path, node: Any) -> None:
    for key, value in node.items() if isinstance(node, dict) else ():
        if key in _READ or key in _HARMLESS or (key.startswith("x-") and key != "x-guidance"):
            continue
        if key in _NOTHING:
            if not any(value == each and type(value) is type(each) for each in _NOTHING[key]):
                raise SchemaError(path, f"the keyword {key!r} is not implemented")
            continue
        near = get_close_matches(key, [*_READ, *_HARMLESS, *_NOTHING], n=1)
        hint = f"; is {near[0]!r} meant?" if near else ""
        raise SchemaError(path, f"{key[:100]!r} is no keyword of JSON Schema{hint}")
