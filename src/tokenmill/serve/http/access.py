"""The access log, a line for each request when it has been answered, with its id, status and time; and the record of
requests that `tokenmill serve --record FILE` keeps, for `tokenmill agent-check`.

Lines of the log hold no prompts, no keys and no text of the model, and nothing that a client sends can break a line.
"""

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.errors import ConfigError
from tokenmill.prove.agent.log import SECRET
from tokenmill.serve.http.errors import CLIENT_CLOSED

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
UNTYPED = "/api/"  # Ollama's routes, whose clients may not say that a body is JSON
ONLY_OWNER = 0o600  # prompts may hold anything
LONGEST_PATH = 200
POLLED, OK = ("/v1/cache", "/page/"), 200


class AccessLog:
    """The access log around the application. Each response has an X-Request-Id: the client's own, if it is a plain one.

    tell: writes a line; None writes none. style: a name in FORMATS. What the page asks again and again has no line.
    """

    def __init__(self, app: ASGIApp, tell: Callable[[str], None] | None, style: str) -> None:
        self._app, self._tell, self._format = app, tell, FORMATS[style]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = Headers(scope=scope).get("x-request-id", "")
        number = given if ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
        begun_s, status = time.perf_counter(), 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        try:
            await self._app(scope, receive, note)
        finally:
            if self._tell is not None and not (status == OK and scope["path"].startswith(POLLED)):
                self._tell(self._format(_record(scope, number, status, time.perf_counter() - begun_s)))


def _record(scope: Scope, number: str, status: int, seconds: float) -> dict[str, Any]:
    path = scope["raw_path"].decode("ascii", "backslashreplace")[:LONGEST_PATH]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "client": (scope.get("client") or ("-",))[0],
        "method": scope["method"][:16],
        "path": "".join(each if each.isprintable() and each != " " else "?" for each in path),
        "status": status or CLIENT_CLOSED,  # no response was begun
        "seconds": round(seconds, 4),
        "request_id": number,
    }


def _text(record: dict[str, Any]) -> str:
    return "{time} {client} {method} {path} {status} {seconds:.3f} s {request_id}".format_map(record)


FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {"text": _text, "json": json.dumps}


class Recording:
    """A record around the application: a posted body of JSON becomes a line of the file, without keys and cookies."""

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app, self._file, self._order = app, file, asyncio.Lock()
        try:
            os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, ONLY_OWNER))
        except OSError as error:
            allowed = f"a file that can be written ({error.strerror})"
            raise ConfigError("record", str(file), allowed, "--record") from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        parts, headers = list[bytes](), Headers(scope=scope)
        is_json = headers.get("content-type", "").startswith("application/json") or scope["path"].startswith(UNTYPED)
        is_written = not is_json

        async def noted() -> Message:
            nonlocal is_written
            message = await receive()
            if not is_written and message["type"] == "http.request":
                parts.append(message.get("body", b""))
                if is_written := not message.get("more_body", False):
                    async with self._order:
                        await asyncio.to_thread(self._write, scope, headers, b"".join(parts))
            return message

        await self._app(scope, noted, send)

    def _write(self, scope: Scope, headers: Headers, content: bytes) -> None:
        try:
            body: Any = json.loads(content)
        except (ValueError, RecursionError):
            return  # the body is refused: it is no JSON
        told = {name: value for name, value in headers.items() if name not in SECRET}
        line = {"time": time.time(), "path": scope["path"], "headers": told, "body": body}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=True) + "\n")


def recorded(app: ASGIApp, file: Path | None) -> ASGIApp:
    """Return the application, with a record of its requests if there is a file for it."""
    return app if file is None else Recording(app, file)
