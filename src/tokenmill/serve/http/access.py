"""The access log: a line for each request when it has been answered, with its id, status and time.

Lines hold no prompts, no keys and no text of the model, and nothing that a client sends can break a line in two.
"""

import json
import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.serve.http.errors import CLIENT_CLOSED

ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
LONGEST_PATH = 200
POLLED, OK = ("/v1/cache", "/page/"), 200


class AccessLog:
    """Around the application. Each response has an X-Request-Id: the client's own, if it is a plain one.

    tell: writes a line; None writes none. style: a name in FORMATS. What the page asks again and again has no line.
    """

    def __init__(self, app: ASGIApp, tell: Callable[[str], None] | None, style: str) -> None:
        self._app, self._tell, self._format = app, tell, FORMATS[style]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
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
