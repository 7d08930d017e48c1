"""Objects that name their properties have no others, where nothing says which others they have.

So it is in llama.cpp, Ollama and xgrammar; a small model would go on with properties of its own. An object may be put
together of several schemas (`allOf`, `anyOf`, `oneOf`, `$ref`): it has the properties that any of them names; of a
choice, the properties of the schema that is chosen. Likewise a list that names its first items (`prefixItems`) ends
with them, and what has properties or items is an object or a list where no type is told.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from tokenmill.constrain.schema_parts import Path, define, target_of

Json = dict[str, Any]
CHOICES = ("anyOf", "oneOf")
_ITEMS = ("items", "prefixItems", "additionalItems")
_OF_LISTS = (*_ITEMS, "minItems", "maxItems", "contains")


class Said(NamedTuple):
    """All that schemas say together of one value.

    names: of its properties → whether one has a schema for that property; others are only required. patterns: of
    properties. declares: it is told which properties there are. opens: it is told which others there are, or they are
    not to be closed. least: so many properties there must be. lists: something is said of items. types: the type of the
    value is told. chooses: one of several schemas counts.
    """

    names: dict[str, bool]
    patterns: dict[str, bool]
    declares: bool = False
    opens: bool = False
    least: int = 0
    lists: bool = False
    types: bool = False
    chooses: bool = False


NOTHING = Said({}, {})
OPEN = NOTHING._replace(opens=True)


class Inner(NamedTuple):
    """Schemas of the same value inside of a schema: one of allOf, the branches of a choice, or the schema of a
    reference, which has no nodes of its own. whole: a schema that says what these say.
    """

    whole: Any
    nodes: Sequence[Any] = ()


def close(schema: Json) -> None:
    """Close the objects and lists of a schema, in which all references lead somewhere."""
    _Closing(schema).run([schema])


def seal(root: Json, nodes: Iterable[Json]) -> None:
    """Close the objects of these schemas, which say `unevaluatedProperties: false`, to the properties for which they
    have schemas, and say it so. Values inside of them are left as they are. root: the schema of which these are parts.
    """
    closing = _Closing(root, is_sealing=True)
    for node in nodes:
        node.pop("unevaluatedProperties")
    closing.run(nodes)


def two_choices(root: Json, nodes: Mapping[Path, Any]) -> set[Path]:
    """Return the places of the schemas for which two choices decide at once what properties a value has."""
    closing = _Closing(root)
    return {path for path, node in nodes.items() if isinstance(node, dict) and closing.chooses_twice(node)}


class _Closing:
    """The closing of a schema, with the parts that are left to be closed. before: the schema as it was, to which
    references lead. is_sealing: values inside of the given ones are left as they are.
    """

    def __init__(self, schema: Json, *, is_sealing: bool = False) -> None:
        self._root, self._before, self._is_sealing = schema, deepcopy(schema), is_sealing
        self._waiting, self._met = list[tuple[Any, Said]](), set[int]()
        self._copies: dict[tuple[Path, str], str] = {}
        self._said: dict[Path, Said] = {}

    def run(self, nodes: Iterable[Json]) -> None:
        for node in nodes:
            self._value(node)
        while self._waiting:
            self._part(*self._waiting.pop())

    def chooses_twice(self, node: Json) -> bool:
        inner = list(self._inner(node))
        said = [self._said_by(each.whole) for each in inner] if len(inner) > 1 else []
        return (
            sum(each.chooses and (each.opens or any(each.names.values()) or bool(each.patterns)) for each in said) > 1
        )

    def _value(self, node: Any) -> None:
        """Have the schema of a value closed."""
        if isinstance(node, dict) and id(node) not in self._met:
            self._met.add(id(node))
            self._waiting.append((node, NOTHING))

    def _part(self, node: Any, around: Said) -> None:
        """Close a schema of a value. around: what other schemas say of the value."""
        if not isinstance(node, dict):
            return
        own, inner = _own(node), list(self._inner(node))
        if own == NOTHING and len(inner) == 1:
            self._descend(node, inner[0], around)
            return
        said = [around, *(self._said_by(each.whole) for each in inner)]
        others, twice = _together(said), _twice([own, *said])
        self._values(node, others)
        for number, each in enumerate(inner, start=1):
            rest = twice  # without a choice in it: what closes the others closes it
            if said[number].chooses:
                rest = _together([own, *(one for place, one in enumerate(said) if place != number)])
            self._descend(node, each, rest._replace(chooses=False))
        if not any(each.chooses for each in said[1:]):
            (_seal if self._is_sealing else _close)(node, own, others)

    def _descend(self, node: Json, inner: Inner, around: Said) -> None:
        for each in inner.nodes:
            self._part(each, around)
        if not inner.nodes:
            self._refer(node, around)

    def _values(self, node: Json, others: Said) -> None:
        """Have the parts of a value closed. Where other schemas speak of one of them, too, it is left as it is."""
        if self._is_sealing:
            return
        for key, told in (("properties", others.names), ("patternProperties", others.patterns)):
            for name, each in node[key].items() if isinstance(node.get(key), dict) else ():
                self._inside(each, is_shared=told.get(name, False))
        self._inside(node.get("additionalProperties"), is_shared=others.opens)
        for key in _ITEMS:
            for each in node[key] if isinstance(node.get(key), list) else [node.get(key)]:
                self._inside(each, is_shared=others.lists)

    def _inside(self, node: Any, *, is_shared: bool) -> None:
        if is_shared:
            self._waiting.append((node, OPEN))
        else:
            self._value(node)

    def _refer(self, node: Json, around: Said) -> None:
        """Have a reference lead to a schema that is closed as this part has to be."""
        place, found = target_of(self._before, (), node["$ref"])
        if self._is_sealing and around.opens:
            return
        if not self._is_sealing and around == NOTHING and not (len(place) > 1 and place[-2] in ("allOf", *CHOICES)):
            self._value(target_of(self._root, (), node["$ref"])[1])
            return
        key = place, repr(around)
        if key not in self._copies:
            copy = deepcopy(found)
            self._copies[key] = define(self._root, copy)
            self._waiting.append((copy, around))
        node["$ref"] = f"#/$defs/{self._copies[key]}"

    @staticmethod
    def _inner(node: Json) -> Iterator[Inner]:
        joined = node.get("allOf")
        for each in joined if isinstance(joined, list) else ():
            yield Inner(each, [each])
        for key in CHOICES:
            if isinstance(branches := node.get(key), list) and branches:
                yield Inner({key: branches}, branches)
        if "$ref" in node:
            yield Inner({"$ref": node["$ref"]})

    def _said_by(self, node: Any) -> Said:
        """Return what a schema says of its value, with all schemas that it is put together of."""
        if not isinstance(node, dict):
            return NOTHING
        found = [_own(node)]
        for key in ("allOf", *CHOICES):
            if isinstance(parts := node.get(key), list):
                found += map(self._said_by, parts)
                found += [NOTHING._replace(chooses=True)] if parts and key in CHOICES else []
        if "$ref" in node:
            place, target = target_of(self._before, (), node["$ref"])
            if place not in self._said:
                self._said[place] = NOTHING  # while it is looked at
                self._said[place] = self._said_by(target)
            found.append(self._said[place])
        return _together(found)


def _own(node: Json) -> Said:
    properties, patterns, required = (node.get(key) for key in ("properties", "patternProperties", "required"))
    names = dict.fromkeys(properties, True) if isinstance(properties, dict) else {}
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str):
            names.setdefault(name, False)
    return Said(
        names,
        dict.fromkeys(patterns, True) if isinstance(patterns, dict) else {},
        declares=isinstance(properties, dict) or isinstance(patterns, dict),
        opens=node.get("additionalProperties", False) is not False or "unevaluatedProperties" in node,
        least=each if isinstance(each := node.get("minProperties"), int) else 0,
        lists=any(key in node for key in _OF_LISTS),
        types=any(key in node for key in ("type", "enum", "const")),
    )


def _together(parts: Iterable[Said]) -> Said:
    names, patterns, (*every,) = dict[str, bool](), dict[str, bool](), parts
    for each in every:
        names |= {name: is_told or names.get(name, False) for name, is_told in each.names.items()}
        patterns |= each.patterns
    return Said(
        names,
        patterns,
        any(each.declares for each in every),
        any(each.opens for each in every),
        max((each.least for each in every), default=0),
        any(each.lists for each in every),
        any(each.types for each in every),
        any(each.chooses for each in every),
    )


def _twice(parts: Iterable[Said]) -> Said:
    """Return what more than one of these says, with which nothing is closed."""
    met, found = NOTHING._replace(names={}, patterns={}), OPEN._replace(names={}, patterns={})
    for each in parts:
        for told, before, twice in (
            (each.names, met.names, found.names),
            (each.patterns, met.patterns, found.patterns),
        ):
            for name in (name for name, is_told in told.items() if is_told):
                (twice if name in before else before)[name] = True
        found = found._replace(lists=found.lists or (met.lists and each.lists))
        met = met._replace(lists=met.lists or each.lists)
    return found


def _close(node: Json, own: Said, others: Said) -> None:
    """Close an object or a list, if it is neither closed nor opened."""
    types = node.get("type", ["object", "array"])
    types = types if isinstance(types, list) else [types]
    every = _together([own, others])
    if not (every.types or every.opens):  # as llama.cpp and xgrammar read such a schema
        types = ["object"] if every.declares else ["array"] if any(key in node for key in _ITEMS) else types
        node |= {"type": types[0]} if len(types) == 1 else {}
    is_free = every.opens or "additionalProperties" in node or "enum" in node or "const" in node
    is_enough = every.least <= len(every.names) or bool(every.patterns)
    if "object" in types and every.declares and is_enough and not is_free:
        _admit(node, every.names, every.patterns)
    if "array" in types and not (others.lists or others.opens or "unevaluatedItems" in node):
        _close_list(node)


def _seal(node: Json, own: Said, others: Said) -> None:
    """Close an object, if nothing opens it, to the properties for which there are schemas."""
    every = _together([own, others])
    if not every.opens and "additionalProperties" not in node:
        _admit(node, [name for name, is_told in every.names.items() if is_told], every.patterns)


def _admit(node: Json, names: Iterable[str], patterns: Iterable[str]) -> None:
    """Have an object no other properties than these. It says nothing of properties of which other schemas speak."""
    for key, found in (("properties", names), ("patternProperties", patterns)):
        known: Json = each if isinstance(each := node.get(key), dict) else {}
        if added := {name: True for name in found if name not in known}:
            node[key] = {**known, **added}
    node["additionalProperties"] = False


def _close_list(node: Json) -> None:
    least = node.get("minItems", 0)
    for first, rest in (("prefixItems", "items"), ("items", "additionalItems")):
        if isinstance(items := node.get(first), list) and items:
            if rest not in node and isinstance(least, int) and least <= len(items):
                node[rest] = False
            return
