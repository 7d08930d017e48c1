"""docs/http.md: every route of the server and the fields of its bodies, from the document of /openapi.json."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from tests.book.markdown import code, table
from tests.book.options import escaped
from tests.book.route_fields import FIELDS
from tokenmill.serve.facts.document import REFUSALS, document_of
from tokenmill.serve.routes import ROUTES
from tokenmill.serve.start.options import Options

Json = dict[str, Any]

HEAD = """# HTTP

Every route of `tokenmill serve`, with the fields that its bodies have. This page is made by `python -m tests.book`, of
the document that a running server gives at `/openapi.json`.
[Serving](serving.md) tells how the routes are used, what is promised of them, and what other servers do otherwise.

A body is JSON, sent with `Content-Type: application/json`. A field that is `null` is as one that is not there. A field
that is not known is named in `warnings` of the answer, or refused with `--strict`; one whose name is almost that of
another is refused. `HEAD` answers as `GET`, without the body. With keys, a request sends one as
`Authorization: Bearer KEY`; routes marked *open* want none.
"""
STATUSES = """## Statuses

Errors have the form of the protocol of their route. These are the statuses that mean something else than success:
"""
UNSERVED = "not supported: no other value"


def page() -> str:
    """The whole page."""
    told = document()
    parts = [HEAD, table(("route", "", "refuses with"), overview(told)), STATUSES]
    parts.append(table(("status", "when"), ((status, f"{said}.") for status, (said, _) in REFUSALS.items())))
    parts += bodies(told)
    return "\n".join(parts)


@cache
def document() -> Json:
    """The document of a server that has keys."""
    return document_of(ROUTES, Options(name="MODEL", keys=("key",)))


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    """Method, path and description of every route."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def overview(document: Json) -> Iterator[tuple[str, str, str]]:
    """A row for each route."""
    for method, path, operation in operations(document):
        refusals = ", ".join(sorted(status for status in operation["responses"] if status != "200"))
        is_open = "" if operation["security"] else " *Open.*"
        yield f"`{method} {path}`", escaped(operation["description"]) + is_open, refusals


def bodies(document: Json) -> Iterator[str]:
    """A section for each body, with the routes that take it."""
    routes: dict[str, list[str]] = {}
    for method, path, operation in operations(document):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        if "$ref" in content.get("schema", {}):
            routes.setdefault(content["schema"]["$ref"].rpartition("/")[2], []).append(f"{method} {path}")
    schemas = document["components"]["schemas"]
    for name, of in routes.items():
        fields = schemas[name]["properties"]
        refused = [field for field, schema in fields.items() if schema.get("description") == UNSERVED]
        required = schemas[name].get("required", ())
        first = sorted(fields.items(), key=lambda item: item[0] not in required)
        rows = [(_name(field, required), *_form(field, each)) for field, each in first if field not in refused]
        yield f"## Body of {of[0]}\n"
        if len(of) > 1:
            yield f"Also of {code(*of[1:])}.\n"
        yield table(("field", "value", ""), rows)
        if refused:
            yield f"Refused by name unless they ask for nothing: {code(*refused)}.\n"


def _name(field: str, required: Any) -> str:
    return f"`{field}`" + " (required)" * (field in required)


def _form(name: str, schema: Json) -> tuple[str, str]:
    """What a field may be, in words, and what is told of it, with its bounds and its default."""
    forms = list(dict.fromkeys(filter(None, map(_kind, schema.get("anyOf", [schema])))))
    numbers = next((each for each in schema.get("anyOf", [schema]) if each.get("type") in ("integer", "number")), {})
    told = [f"{words} {numbers[key]:g}" for key, words in BOUNDS.items() if abs(numbers.get(key, 2**31)) < 2**31]
    if schema.get("default") not in (None, ""):
        told.append(f"default `{str(schema['default']).lower()}`")
    limits = "; ".join(told)
    limits = f" {limits[0].upper()}{limits[1:]}." if limits else ""
    return " or ".join(forms) or "anything", escaped(FIELDS.get(name, "") + limits)


BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "object",
}


def _kind(schema: Json) -> str:
    """A form in a word or two; empty for null."""
    if "$ref" in schema:
        return "object"
    if "enum" in schema or "const" in schema:
        values = [value for value in schema.get("enum", [schema.get("const")]) if value is not None]
        return "the model's name" if values == ["MODEL"] else code(*map(str, values))
    kind = schema.get("type", "")
    if kind == "array":
        inner = " or ".join(dict.fromkeys(filter(None, map(_kind, schema["items"].get("anyOf", [schema["items"]])))))
        return f"list of {PLURALS.get(inner, inner.replace('list of', 'lists of'))}"
    return KINDS.get(kind, "")


PLURALS = {"whole number": "whole numbers", "text": "texts", "object": "objects", "number": "numbers"}
