"""A JSON schema before llguidance reads it: what it does not implement is refused, and some text that fits has an end.

Keywords of the standard that llguidance does not implement are refused by their place, or said by others; unknown
keywords are annotations, and are left out. Parts that nothing refers to are not read, as there.
"""

from collections.abc import Collection
from copy import deepcopy
from typing import Any, NamedTuple

from tokenmill.constrain.closing import close
from tokenmill.constrain.other_words import rewrite_names, rewrite_unevaluated
from tokenmill.constrain.schema_parts import Path, Reached, SchemaError, finite, keep_targets, reach
from tokenmill.constrain.schema_words import COUNTS, NOTHING, asks_nothing, is_annotation, refused, told
from tokenmill.text.schema.apart import is_apart
from tokenmill.text.schema.expression import PatternError
from tokenmill.text.schema.spelled import spelled
from tokenmill.text.schema.unique import values_of


class SchemaReading(NamedTuple):
    """A schema as llguidance is to read it. warnings: of the annotations in it. left_out: why a part is not enforced,
    where parts may be left out.
    """

    schema: dict[str, Any]
    warnings: list[str]
    left_out: list[str]


def read_schema(schema: dict[str, Any] | bool, *, is_open: bool = False) -> dict[str, Any]:
    """Return the schema as llguidance is to read it, without parts that no text with an end fits; true is read as any
    value.

    is_open: objects that name their properties may have others. SchemaError for a schema that is refused.
    """
    return reading(schema, is_open=is_open).schema


def annotations(schema: dict[str, Any] | bool) -> list[str]:
    """Return what a schema says without effect, as sentences that begin with the place."""
    return [] if isinstance(schema, bool) else told(reach(schema))


def reading(schema: dict[str, Any] | bool, *, is_open: bool = False, is_lenient: bool = False) -> SchemaReading:
    """Read a schema. is_lenient: keywords that are not implemented are left out."""
    if schema is True:
        return SchemaReading({}, [], [])
    if schema is False:
        raise SchemaError((), "no text with an end fits this part")
    made, lost = deepcopy(schema), dict[Path, SchemaError]()
    found = reach(made, lost if is_lenient else None)
    for path in lost:
        del found.nodes[path]["$ref"]
    wrong = [each for path, node in found.nodes.items() for each in refused(path, node)]
    if wrong and not is_lenient:
        raise wrong[0][1]
    _check_ends(found)
    warnings, left_out = told(found), [str(error) for error in (*lost.values(), *(each for _, each in wrong))]
    _tidy(made)
    _reword(made, is_lenient, left_out)
    if not is_open:
        close(made)
    _say_any(made)
    reached = reach(made)
    endless = _check_ends(reached)
    if keep_targets(made, reached, endless):
        reached = reach(made)
        endless = _check_ends(reached)
    dropped = _left_out(reached, made)
    return SchemaReading(_rebuilt(made, (), endless, dropped, reached.nodes), warnings, left_out)


def _tidy(schema: dict[str, Any]) -> None:
    """Leave annotations out, and write counts as integers: by the standard 2.0 is one."""
    found = reach(schema)
    keep_targets(schema, found, _annotations(found))
    for node in found.nodes.values():
        for key, value in list(node.items()) if isinstance(node, dict) else ():
            if is_annotation(node, key):
                del node[key]
            elif key in COUNTS and isinstance(value, float) and value.is_integer():
                node[key] = int(value)


def _annotations(found: Reached) -> set[Path]:
    return {
        (*path, key)
        for path, node in found.nodes.items()
        for key in (node if isinstance(node, dict) else ())
        if is_annotation(node, key)
    }


def _left_out(found: Reached, schema: Any) -> set[Path]:
    return {
        (*path, key)
        for path, node in found.nodes.items()
        for key, value in (node.items() if isinstance(node, dict) else ())
        if key in NOTHING
        or is_annotation(node, key)
        or (key == "uniqueItems" and (value is not True or values_of(node, schema) is None))
    }


def _check_ends(found: Reached) -> set[Path]:
    """Return the places of the parts that no text with an end fits. SchemaError if the whole is one of them."""
    ending = finite(found)
    endless = [path for path in found.nodes if path not in ending]  # a list: the same part is named in every process
    if () in endless:
        circles = [path for path in endless if path in found.targets]
        why = ", because it needs itself" if circles else ""
        raise SchemaError(max(circles or endless, key=len), f"no text with an end fits this part{why}")
    return set(endless)


def _reword(schema: Any, is_lenient: bool, left_out: list[str]) -> None:
    """Say by other keywords what llguidance does not implement."""
    rewrite_unevaluated(schema, left_out if is_lenient else None)
    for path, node in reach(schema).nodes.items():
        if not isinstance(node, dict) or "propertyNames" not in node:
            continue
        if asks_nothing("propertyNames", node["propertyNames"]):
            continue
        try:
            rewrite_names(schema, path, node)
        except SchemaError as error:
            if not is_lenient:
                raise
            left_out.append(str(error))


def _say_any(schema: dict[str, Any]) -> None:
    """Say by `anyOf` each `oneOf` of which no value fits two schemas."""
    for node in reach(schema).nodes.values():
        options = node.get("oneOf") if isinstance(node, dict) else None
        if not isinstance(options, list) or not isinstance(node.get("allOf", []), list):
            continue
        if not is_apart(options, schema):
            continue
        node.pop("oneOf")
        if "anyOf" not in node:
            node["anyOf"] = options
        else:
            node["allOf"] = [*node.get("allOf", ()), {"anyOf": options}]


def _rebuilt(
    value: Any, path: Path, endless: Collection[Path], dropped: Collection[Path], nodes: Collection[Path]
) -> Any:
    """Return a value of JSON with false in `endless` places, without `dropped` ones, and with the schemas at `nodes` as
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
    """Return the parts of a schema as schemas by themselves, with its definitions; inner ones first, the whole last."""
    named: dict[str, Any] = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
    nodes = reach(schema).nodes
    paths = sorted((path for path, node in nodes.items() if path and isinstance(node, dict)), key=len, reverse=True)
    return {path: {**named, **nodes[path]} for path in paths[:_MOST_TRIED]} | {(): schema}


_MOST_TRIED = 300  # each of which is compiled to find what is wrong
