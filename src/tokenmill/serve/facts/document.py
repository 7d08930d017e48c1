"""The document at /openapi.json, made of the table of routes and of the forms of bodies, and the page at /docs.

The document describes one server: it names the model that is served, and wants a key only if the server does. The page
tells of the program alone, so it wants none; it needs no network, since this server's pages load nothing from
elsewhere.
"""

import asyncio
from collections.abc import Iterator
from collections.abc import Sequence as List
from html import escape
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.responses import HTMLResponse, JSONResponse, Response

from tokenmill.serve.facts.page import HEADERS
from tokenmill.serve.http.streams import EVENTS
from tokenmill.serve.loop.service import Call
from tokenmill.serve.protocols import Route
from tokenmill.serve.request.fields import Settings
from tokenmill.serve.start.options import Options
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams
from tokenmill.version import __version__

Json = dict[str, Any]

RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
REFUSALS: dict[int, tuple[str, Json]] = {
    400: ("Something in the request is wrong; `param` names the field", {}),
    401: ("No key of this server", {}),
    403: ("A foreign Host, at a server that has no key and answers under the names of its machine only", {}),
    404: ("There is no such model, session, file or batch", {}),
    408: ("The body did not come in time", {}),
    409: ("The file of the session cannot be used; a batch has ended, or reads the file", {}),
    413: ("The body is too large", {}),
    415: ("The body is compressed, or does not say that it is JSON", {}),
    429: ("The queue is full", RETRY_AFTER),
    431: ("The headers are too many, or too large", {}),
    500: ("A fault of the server", {}),
    503: ("The server is shutting down, or the engine has failed", RETRY_AFTER),
    504: ("The request did not end within its `timeout`", {}),
    507: ("There is no room to write it", {}),
}
ALWAYS = (413, 415, 431, 500)
"""The statuses of refusals that any request may meet, most of them before it reaches a route."""
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tokenmill: routes</title>
<link rel="icon" href="/page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/page/docs.css">
</head>
<body>
<h1>Routes of tokenmill {version}</h1>
<p>The same for programs: <a href="/openapi.json">/openapi.json</a>. The page to talk to
the model: <a href="/">/</a>. A body is JSON, sent with <code>Content-Type: application/json</code>.</p>
{routes}
</body>
</html>
"""
STREAMS = {
    True: "Server-sent events, each with an object in JSON",
    False: "Lines, each an object; `done` is true in the last, or it has an `error`",
}
REF = "#/components/schemas/{model}"


async def openapi(call: Call) -> Response:
    """Give the document."""
    given = call.service.routes, call.service.options
    return await asyncio.to_thread(lambda: JSONResponse(document_of(*given)))


async def reference(call: Call) -> Response:
    """Give the page."""
    given = call.service.routes, call.service.options
    html = await asyncio.to_thread(lambda: reference_of(document_of(*given)))
    return HTMLResponse(html, headers=HEADERS)


def document_of(routes: List[Route], options: Options, names: List[str] = ()) -> Json:
    """Make the document of a server with these routes. names: of the models, where there are several."""
    shown = [route for route in routes if not route.is_hidden]
    forms = dict.fromkeys(form for route in shown if (form := route.body or route.form) is not None)
    schemas: Json = models_json_schema([(form, "validation") for form in forms], ref_template=REF)[1]["$defs"]
    for form in forms:
        if issubclass(form, Settings):
            _describe_settings(form, schemas[form.__name__]["properties"])
    for schema in schemas.values():
        _describe_body(schema, names or [options.name])
    paths: Json = {}
    for route in shown:
        operation = _operation(route, options)
        paths.setdefault(route.path.replace(":path", ""), {})[route.method.lower()] = operation
    components = {"schemas": schemas}
    components |= {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}} if options.keys else {}
    told = {"title": "tokenmill", "version": __version__}
    return {"openapi": "3.1.0", "info": told, "paths": paths, "components": components}


def _operation(route: Route, options: Options) -> Json:
    """Describe a route: its parameters, its body, the statuses that it answers with, and whether it wants a key."""
    needs_key = bool(options.keys) and not route.is_open
    kinds: Json = {kind: {"schema": {}} for kind in route.kinds}
    if route.writer is not None:
        # Of no type: OpenAPI 3.1 does not say whether this is the schema of the whole stream or of each event.
        kind = route.protocol.stream
        kinds[kind] = {"schema": {"description": STREAMS[kind == EVENTS]}}
    answers: Json = {"200": {"description": "Done", "content": kinds}}
    before = (403 if not options.keys else 401 if needs_key else 500, *ALWAYS)
    for status in sorted({*route.refuses, *before}):
        text, headers = REFUSALS[status]
        content = {"application/json": {"schema": {"type": "object", "required": ["error"]}}}
        answers[str(status)] = {"description": text, "content": content} | ({"headers": headers} if headers else {})
    found: Json = {"description": route.description, "responses": answers, "security": [{"key": []}] * needs_key}
    if parameters := list(_parameters(route, options.name)):
        found["parameters"] = parameters
    if (form := route.body or route.form) is not None:
        kind = "application/json" if route.form is None else "multipart/form-data"
        schema = {"schema": {"$ref": REF.format(model=form.__name__)}}
        found["requestBody"] = {"required": True, "content": {kind: schema}}
    return found


def _parameters(route: Route, model: str) -> Iterator[Json]:
    if "{name" in route.path:
        examples = {"examples": [model]} if "models" in route.path else {}
        yield {"name": "name", "in": "path", "required": True, "schema": {"type": "string", **examples}}
    if route.query is not None:
        for name, schema in route.query.model_json_schema()["properties"].items():
            yield {"name": name, "in": "query", "required": False, "schema": schema}


def _describe_settings(form: type[Settings], properties: Json) -> None:
    """Set the ranges, which SamplingParams has, and the only values of fields that are not served."""
    told = settings_of(SamplingParams)
    bounds: dict[str, Any] = {field: told[setting].limits for setting, field in HTTP_FIELDS.items()}
    # -1 stands for as many tokens as fit, or for any seed; 0 tokens are possible with echo alone
    bounds |= {name: {"minimum": -1} for name in ("max_tokens", "max_completion_tokens", "seed")}
    for name, values in form.UNSERVED.items():
        properties[name] = {"enum": [*values, None], "description": "not supported: no other value"}
    for name in properties.keys() & bounds.keys():
        _set_bounds(properties[name], bounds[name])


def _describe_body(schema: Json, models: List[str]) -> None:
    """Name the models that there are. A field that need not be there may be null."""
    if schema.get("additionalProperties") is not True:
        return
    required, properties = schema.get("required", ()), schema["properties"]
    for field, each in properties.items():
        if field not in required and "type" in each:
            kept = {key: each.pop(key) for key in list(each) if key not in ("default", "title", "description")}
            each["anyOf"] = [kept, {"type": "null"}]
        elif field not in required and "anyOf" in each and {"type": "null"} not in each["anyOf"]:
            each["anyOf"].append({"type": "null"})
    if "model" in properties:
        properties["model"] = {"enum": [*models] if "model" in required else [*models, None]}


def _set_bounds(schema: Json, bounds: Any) -> None:
    """Set the bounds of the numbers in a schema. A whole number is at least 1 unless its setting says otherwise."""
    for each in schema.get("anyOf", [schema]):
        if bounds and each.get("type") in ("integer", "number"):
            each.pop("minimum", None)
            each["exclusiveMinimum" if bounds.get("exclusive") else "minimum"] = bounds.get("minimum", 1)
            if "maximum" in bounds:
                each["maximum"] = bounds["maximum"]


def reference_of(document: Json) -> str:
    """Write the page of an OpenAPI document."""
    schemas = document["components"]["schemas"]
    routes = [
        "".join(_route(method.upper(), path, operation, schemas))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return PAGE.format(version=escape(__version__), routes="\n".join(routes))


def _route(method: str, path: str, operation: Json, schemas: Json) -> Iterator[str]:
    yield f"<section><h2><code>{method} {escape(path)}</code></h2><p>{escape(operation['description'])}"
    yield "</p>" if not operation["security"] else " It wants a key: <code>Authorization: Bearer KEY</code>.</p>"
    content: Json = operation.get("requestBody", {}).get("content", {})
    kind = next(iter(content), "")
    schema: Json = content[kind]["schema"] if content else {}
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    required = schema.get("required", ())
    if rows := [_row(name, each, name in required) for name, each in schema.get("properties", {}).items()]:
        yield f"<details><summary>Fields of {escape(kind)}</summary><table>{''.join(rows)}</table></details>"
    yield "</section>"


def _row(name: str, schema: Json, is_required: bool) -> str:
    kinds = dict.fromkeys(each.get("type", "object") for each in schema.get("anyOf", [schema]))
    words = [*(kind for kind in kinds if kind != "null"), *(["required"] if is_required else [])]
    told = schema.get("description", "")
    return f"<tr><th>{escape(name)}</th><td>{escape(', '.join(words))}</td><td>{escape(told)}</td></tr>"
