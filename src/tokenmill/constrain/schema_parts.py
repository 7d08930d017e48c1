"""The schemas inside a JSON schema by their places, the references among them, and which of them a text with an end
fits.
"""

from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple
from urllib.parse import unquote

Path = tuple[str | int, ...]

MAPS = ("properties", "patternProperties")
LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
SINGLE = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
"""Keywords whose value is an object of schemas, a list of them, or one."""


class SchemaError(Exception):
    """A schema is refused. The message begins with the place in it, as a JSON pointer."""

    def __init__(self, path: Path, message: str, where: str = "") -> None:
        super().__init__(f"{where}at {pointer(path)}: {message}")
        self._said = path, message

    def inside(self, where: str) -> "SchemaError":
        """Return the same error, of a schema that stands at a place of something else."""
        return SchemaError(*self._said, f"{where} ")


def is_never(node: Any) -> bool:
    """Return whether a schema says `"not": {}`, which no value fits."""
    return isinstance(node, dict) and "not" in node and (node["not"] is True or node["not"] == {})


def pointer(path: Path) -> str:
    """Write a place in a schema as a reference would name it."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


class Reached(NamedTuple):
    """The schemas that a schema uses, by their places, and the places that references among them name."""

    nodes: dict[Path, Any]
    targets: dict[Path, Path]

    def outer_places(self) -> set[Path]:
        """Return the places that references name, and the places around them."""
        return {target[:length] for target in self.targets.values() for length in range(1, len(target) + 1)}


def reach(schema: Any, lost: dict[Path, SchemaError] | None = None) -> Reached:
    """Find everything that is part of a schema or referred to by a part. SchemaError for a reference that leads
    nowhere, and for any where parts have names of their own: llguidance resolves some of them otherwise than the
    standard.

    lost: takes the places of references that lead nowhere, with the errors, where these are not to be raised.
    """
    nodes, targets = dict[Path, Any](), dict[Path, Path]()
    waiting: list[tuple[Path, Any]] = [((), schema)]
    while waiting:
        path, node = waiting.pop()
        if path in nodes:
            continue
        nodes[path] = node
        if not isinstance(node, dict | bool):
            raise SchemaError(path, f"a schema is an object, or true or false, and not {node!r:.50}")
        if isinstance(node, bool):
            continue
        waiting += _children(path, node)
        if node.get("$ref") is not None:
            if not targets and _has_inner_ids(schema):
                raise SchemaError(path, "$ref is not possible where parts have an $id of their own: leave those out")
            try:
                target, found = target_of(schema, path, node["$ref"])
            except SchemaError as error:
                if lost is None:
                    raise
                lost[path] = error
                continue
            targets[path] = target
            waiting.append((target, found))
    return Reached(nodes, targets)


def finite(reached: Reached) -> set[Path]:
    """Return the places of the schemas that some text with an end fits, by references and required parts."""
    users = _users(reached)
    found: set[Path] = set()
    left = list(reversed(reached.nodes))  # most parts come before what they are part of
    while left:
        new = []
        for path in left:
            if path not in found and _ends(path, reached, found):
                found.add(path)
                new.append(path)
        left = list(dict.fromkeys(user for path in new for user in users.get(path, ()) if user not in found))
    return found


def _users(reached: Reached) -> dict[Path, list[Path]]:
    """Return the places of the schemas that a schema is a part of, or that refer to it."""
    users: dict[Path, list[Path]] = {}
    for path in reached.nodes:
        for outer in (path[:-1], path[:-2]):
            if len(outer) < len(path) and outer in reached.nodes:
                users.setdefault(path, []).append(outer)
    for path, target in reached.targets.items():
        users.setdefault(target, []).append(path)
    return users


def _ends(path: Path, reached: Reached, found: set[Path]) -> bool:
    """Return whether a value of a schema ends, if values of the `found` ones do. Other contradictions are not seen."""
    node = reached.nodes[path]
    if isinstance(node, bool):
        return node
    if is_never(node):
        return False
    if path in reached.targets and reached.targets[path] not in found:
        return False
    for key, enough in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        parts = node.get(key)
        if isinstance(parts, list) and parts and not enough((*path, key, n) in found for n in range(len(parts))):
            return False
    types = node.get("type")
    types = types if isinstance(types, list) else [types]
    if "const" in node or "enum" in node or not types or any(kind not in ("object", "array") for kind in types):
        return True
    needed = {"object": _required, "array": _first_items}
    return any(all(each in found for each in needed[kind](path, reached.nodes)) for kind in types)


def _required(path: Path, nodes: Mapping[Path, Any]) -> Iterator[Path]:
    """Yield the schemas of the properties that an object must have."""
    names = nodes[path].get("required")
    for name in filter(lambda each: isinstance(each, str), names if isinstance(names, list) else ()):
        own, other = (*path, "properties", name), (*path, "additionalProperties")
        if own in nodes:
            yield own
        elif other in nodes and "patternProperties" not in nodes[path]:
            yield other


def _first_items(path: Path, nodes: Mapping[Path, Any]) -> Iterator[Path]:
    """Yield the schemas of the items that an array must have."""
    least = nodes[path].get("minItems")
    least = least if isinstance(least, int) else 0
    key = "prefixItems" if "prefixItems" in nodes[path] else "items"
    first = nodes[path].get(key)
    number = len(first) if isinstance(first, list) else 0
    yield from ((*path, key, place) for place in range(min(least, number)))
    rest = (*path, "items" if key == "prefixItems" or not number else "additionalItems")
    if least > number and rest in nodes:
        yield rest


def _children(path: Path, node: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    for key in MAPS:
        if isinstance(inner := node.get(key), dict):
            yield from (((*path, key, name), each) for name, each in inner.items())
    for key in LISTS:
        if isinstance(inner := node.get(key), list):
            yield from (((*path, key, number), each) for number, each in enumerate(inner))
    for key in SINGLE:
        if node.get(key) is not None and not isinstance(node[key], list):
            yield (*path, key), node[key]


def _has_inner_ids(schema: Any) -> bool:
    """Return whether a part of a schema has a name of its own."""
    waiting = list(schema.values()) if isinstance(schema, dict) else []
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            if isinstance(each.get("$id"), str):
                return True
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return False


def keep_targets(schema: dict[str, Any], found: Reached, lost: Collection[Path]) -> bool:
    """Copy what references name inside of the places in `lost` into $defs, and have them name the copies; return
    whether there are such.

    found: what the schema reaches.
    """
    within = {
        target
        for target in found.targets.values()
        if any(target[:length] in lost for length in range(1, len(target) + 1))
    }
    names = dict.fromkeys(sorted(within, key=pointer), "")
    for target in names:
        names[target] = define(schema, True, str(target[-1]))
    for path, target in found.targets.items():
        if target in names:
            found.nodes[path]["$ref"] = pointer(("$defs", names[target]))
    for target, name in names.items():
        schema["$defs"][name] = deepcopy(found.nodes[target])
    return bool(names)


def define(schema: dict[str, Any], part: Any, name: str = "") -> str:
    """Put a part into $defs, under the given name if it is free there; return the name."""
    known = schema.setdefault("$defs", {})
    if not isinstance(known, dict):
        raise SchemaError((), "$defs must be an object")
    number = len(known)
    while not name or name in known:
        name, number = f"part-{number}", number + 1
    known[name] = part
    return name


def target_of(schema: Any, path: Path, reference: Any) -> tuple[Path, Any]:
    """Return the place that a reference names, and the schema there."""
    if not isinstance(reference, str):
        raise SchemaError(path, "$ref is no text")
    if not reference.startswith("#"):
        raise SchemaError(path, f"$ref names another document, {reference[:100]!r}: put its schema into $defs")
    if reference != "#" and not reference.startswith("#/"):
        raise SchemaError(path, f"$ref names an anchor, {reference[:100]!r}: name its place, as #/$defs/NAME")
    found, place = schema, list[str | int]()
    for part in unquote(reference).split("/")[1:]:
        key: str | int = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            key = int(part)
        elif not isinstance(found, dict) or key not in found:
            raise SchemaError(path, f"$ref names {reference[:100]!r}, which is not there")
        found = found[key]
        place.append(key)
    return tuple(place), found
