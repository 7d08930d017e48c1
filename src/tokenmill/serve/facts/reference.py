"""The page at /docs: every route and the fields of its bodies, made of /openapi.json. It needs no network.

FastAPI's own page loads a viewer from elsewhere, which this server's pages never do; see page.py. It tells of the
program, and not of the model that is served, so it wants no key.
"""

import asyncio
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import HTMLResponse, Response

from tokenmill.serve.facts.page import HEADERS
from tokenmill.version import __version__

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
<p>The same with the forms of all answers, for programs: <a href="/openapi.json">/openapi.json</a>. The page to talk to
the model: <a href="/">/</a>. A body is JSON, sent with <code>Content-Type: application/json</code>.</p>
{routes}
</body>
</html>
"""
Json = dict[str, Any]


def add_reference(app: FastAPI) -> None:
    """Add the routes."""

    @app.get("/redoc", include_in_schema=False)
    @app.get("/docs", include_in_schema=False)
    async def reference() -> Response:
        html = await asyncio.to_thread(lambda: reference_of(app.openapi()))
        return HTMLResponse(html, headers=HEADERS)


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
