"""A grammar of a whole schema, for schemas with parts that llguidance reads otherwise than they are meant.

Whether it does is told by the keywords. Numbers, objects and arrays are written as rules here; texts, and parts without
such numbers, are left to llguidance.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.text.schema import texts
from tokenmill.text.schema.merge import Case, MergeError, cases, items_of, kind_of, kinds, listed
from tokenmill.text.schema.number_rules import ANY_NUMBER, number_rule, value_text
from tokenmill.text.schema.numbers import KEYWORDS, Numbers, exact, is_plain, numbers_of
from tokenmill.text.schema.objects import ObjectRules, object_of
from tokenmill.text.schema.pattern import matches
from tokenmill.text.schema.rules import Alternative, Rules, json_text, literal
from tokenmill.text.schema.spelled import LISTS, MAPS, SINGLE
from tokenmill.text.schema.unique import UniqueRules, differing, values_of

_OF_TEXT = texts.KEYWORDS
_ABOUT: Mapping[str, tuple[str, ...]] = {
    "object": ("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    "string": _OF_TEXT,
    "number": KEYWORDS,
}
MOST_ITEMS = 5_000


@dataclass(frozen=True)
class JsonStyle:
    """A spacing of JSON: its separators, and llguidance's options that say the same."""

    options: Mapping[str, Any]
    item_separator: str = ","
    key_separator: str = ":"

    @property
    def is_lenient(self) -> bool:
        """Return whether keywords that are not enforced are passed over."""
        return bool(self.options.get("lenient"))


def rules_of(schema: Mapping[str, Any], prefix: str, style: JsonStyle) -> tuple[str, Mapping[str, str]] | None:
    """Return the name of the first rule and all rules in Lark; None where llguidance reads the schema as it is.

    schema: as `spelled` has it. prefix: of the names of rules. ValueError, in words, for a schema of which there are
    none.
    """
    rules = Rules(prefix)
    try:
        if not _is_misread(schema):
            return None
        first = _Writer(schema, rules, style).value((schema,))
    except RecursionError:
        raise MergeError("it is nested too deeply") from None
    except (TypeError, AttributeError, KeyError) as error:  # as where `required` is a number
        raise MergeError(f"a keyword has a value of a type that it cannot have: {error}") from None
    finished = rules.finished()
    if first not in finished:
        raise MergeError("Unsatisfiable schema: no value fits it")
    return first, finished


def _parts(schema: Mapping[str, Any]) -> Iterator[Any]:
    for key in dict.fromkeys((*MAPS, *LISTS, *SINGLE)):
        inner = schema.get(key)
        if isinstance(inner, Mapping) and key in MAPS:
            yield from inner.values()
        elif isinstance(inner, list) and key in LISTS:
            yield from inner
        elif isinstance(inner, Mapping):
            yield inner


def _is_misread(schema: Any) -> bool:
    """Return whether llguidance reads a schema, or one inside it, otherwise than it is meant."""
    waiting, num_steps, num_parts = [schema], 0, 0
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Mapping):
            continue
        num_steps += "multipleOf" in each
        num_parts += "allOf" in each or "$ref" in each
        if each.get("uniqueItems") is True and values_of(each, schema) is not None:
            return True
        if not is_plain(each) or texts.is_misread(each) or _counts_names(each) or (num_steps > 1 and num_parts):
            return True
        waiting += _parts(each)
    return False


def _counts_names(schema: Mapping[str, Any]) -> bool:
    """Return whether the number of properties depends on others than the required ones."""
    least, most, required = schema.get("minProperties"), schema.get("maxProperties"), schema.get("required")
    named = set(required if isinstance(required, list) else ())
    if isinstance(least, int) and least - len(named) > 1:
        return True
    properties = schema.get("properties")
    optional = set(properties if isinstance(properties, Mapping) else ()) - named
    return bool(optional) and bool(most is not None or (isinstance(least, int) and least > len(named)))


class _Writer:
    """A writer of the rules of a schema's values."""

    def __init__(self, root: Mapping[str, Any], rules: Rules, style: JsonStyle) -> None:
        self._root, self._rules, self._style = root, rules, style
        self._names: dict[tuple[str, ...], str] = {}
        self._waiting: list[tuple[str, tuple[Any, ...]]] = []
        self._is_writing = False

    def value(self, schemas: tuple[Any, ...]) -> str:
        """Return the rule for values that all of these schemas fit. The outermost call also writes what it needs."""
        texts = dict.fromkeys(json.dumps(each) for each in schemas if each is not True and each != {})
        key = tuple(texts)
        if key not in self._names:
            self._names[key] = self._rules.name()
            self._waiting.append((self._names[key], tuple(json.loads(text) for text in texts)))
        if not self._is_writing:
            self._is_writing = True
            while self._waiting:
                name, each = self._waiting.pop()
                self._rules.rule(self._alternatives(each), name)
            self._is_writing = False
        return self._names[key]

    def _alternatives(self, schemas: tuple[Any, ...]) -> list[Alternative]:
        if not schemas:
            return [(self._json({}),)]
        found = cases(schemas, self._root, self._style.is_lenient)
        return list(dict.fromkeys(each for case in found for each in self._of_case(case)))

    def _of_case(self, case: Case) -> Iterator[Alternative]:
        types, is_integer = kinds(case)
        if (values := listed(case)) is not None:
            for value in values:
                if kind_of(value) in types:
                    yield from self._constant(value, case, is_integer)
            return
        for kind in types:
            yield from self._of_kind(kind, case, is_integer)

    def _of_kind(self, kind: str, case: Case, is_integer: bool) -> Iterator[Alternative]:
        about = tuple(each for each in case if any(key in each for key in _ABOUT.get(kind, ())))
        if kind in ("null", "boolean"):
            yield from [('"null"',)] if kind == "null" else [('"true"',), ('"false"',)]
        elif kind == "string":
            yield from self._text(about)
        elif kind == "number":
            yield from self._number(about, is_integer)
        elif not about:
            yield (self._json({"type": kind}),)
        elif kind == "object":
            style = self._style
            made = ObjectRules(object_of(about), self._rules, self.value, style.item_separator, style.key_separator)
            yield made.whole()
        else:
            yield from self._array(about)

    def _json(self, schema: Mapping[str, Any]) -> str:
        """Return the rule of a part that llguidance reads as it is."""
        text = json.dumps({**schema, "x-guidance": self._style.options}, ensure_ascii=False)
        return self._rules.rule([(f"%json {text}",)])

    def _text(self, about: Case, **more: Any) -> Iterator[Alternative]:
        """Yield the texts: by llguidance, where it can read what is said of them."""
        parts = [{key: each[key] for key in _OF_TEXT if key in each} for each in about]
        if "const" in more:
            ahead = [each.pop("pattern") for each in parts if texts.is_ahead(each)]
            if not all(matches(pattern, more["const"]) for pattern in ahead):
                return
        if any(map(texts.is_ahead, parts)):
            yield from self._terminal(parts)
            return
        schema: dict[str, Any] = {"type": "string", **more}
        schema |= parts[0] if len(parts) == 1 else {"allOf": parts} if parts else {}
        if parts and (error := texts.error_of(schema)):
            if "Unsatisfiable schema" in error:
                return
            if more or not error.startswith(texts.UNDECIDED):
                raise MergeError(error)
            yield from self._terminal(parts)
            return
        yield (self._json(schema),)

    def _terminal(self, parts: list[dict[str, Any]]) -> Iterator[Alternative]:
        if (made := texts.terminal_of(parts)) is not None:
            yield (self._rules.terminal(made),)

    def _number(self, about: Case, is_integer: bool) -> Iterator[Alternative]:
        numbers = Numbers(is_integer=is_integer)
        for each in about:
            numbers &= numbers_of(each, is_integer)
        if numbers == Numbers():
            yield (ANY_NUMBER,)
        else:
            yield from number_rule(numbers, self._rules, dict(self._style.options))

    def _constant(self, value: Any, case: Case, is_integer: bool) -> Iterator[Alternative]:
        """Yield a value that a case names, if it fits the rest of the case."""
        kind = kind_of(value)
        about = tuple(each for each in case if any(key in each for key in _ABOUT.get(kind, ())))
        if kind == "number":
            read = [numbers_of(each, is_integer) for each in about]
            number = exact(value, "const")
            if all(each.holds(number) for each in read) and not (is_integer and number.denominator != 1):
                yield (literal(value_text(value)),)
        elif not about:
            yield (literal(self._written(value)),)
        elif kind == "string":
            yield from self._text(about, const=value)
        else:
            yield from self._of_kind(kind, (*about, _schema_of(value)), False)

    def _written(self, value: Any) -> str:
        if isinstance(value, dict):
            colon = self._style.key_separator
            inner = (f"{json_text(key)}{colon}{self._written(each)}" for key, each in value.items())
            return f"{{{self._style.item_separator.join(inner)}}}"
        if isinstance(value, list):
            return f"[{self._style.item_separator.join(map(self._written, value))}]"
        return (
            value_text(value)
            if kind_of(value) == "number"
            else json_text(value)
            if isinstance(value, str)
            else json.dumps(value)
        )

    def _array(self, about: Case) -> Iterator[Alternative]:
        """Yield the arrays: the first items, each by its place, and the others."""
        least, most = 0, None
        firsts, rests = list[list[Any]](), list[Any]()
        for each in about:
            least = max(least, int(each.get("minItems", 0)))
            if (given := each.get("maxItems")) is not None:
                most = int(given) if most is None else min(most, int(given))
            first, rest = items_of(each)
            firsts.append(first)
            rests.append(rest)
        if most is not None and most < least:
            return
        values = differing(about, self._root, is_lenient=self._style.is_lenient)
        if values is not None:
            items = [self.value(({"enum": [value]}, *rests)) for value in values]
            yield UniqueRules(self._rules, items, literal(self._style.item_separator), least, most).whole()
            return
        number = max(map(len, firsts))
        count = max(number, least, most or 0)
        if count > MOST_ITEMS:
            raise MergeError(f"minItems and maxItems are at most {MOST_ITEMS:,} here")
        if most is None:
            behind = self._rules.name()
            again = (literal(self._style.item_separator), self.value(tuple(rests)), behind)
            self._rules.rule([('"]"',), again], behind)
        else:
            behind, count = self._rules.rule([('"]"',)]), min(count, most)
        later = self.value(tuple(rests)) if count > number else ""
        for at in range(count - 1, -1, -1):
            places = zip(firsts, rests, strict=True)
            own = tuple(first[at] if at < len(first) else rest for first, rest in places) if at < number else ()
            item = self.value(own) if at < number else later
            comma = (literal(self._style.item_separator),) if at else ()
            behind = self._rules.rule([*([('"]"',)] if at >= least else []), (*comma, item, behind)])
        if not count and most is None:
            behind = self._rules.rule([('"]"',), (self.value(tuple(rests)), behind)])
        yield ('"["', behind)


def _schema_of(value: Any) -> dict[str, Any]:
    """Return a schema of objects or arrays that one value fits."""
    if isinstance(value, dict):
        inner = {key: {"const": each} for key, each in value.items()}
        return {"properties": inner, "required": list(value), "additionalProperties": False}
    return {"prefixItems": [{"const": each} for each in value], "minItems": len(value), "maxItems": len(value)}
