"""The record of requests that `tokenmill serve --record FILE` keeps, for `tokenmill agent-check`."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.errors import ConfigError
from tokenmill.prove.agent.log import SECRET

UNTYPED = "/api/"  # Ollama's routes, whose clients may not say that a body is JSON
ONLY_OWNER = 0o600  # prompts may hold anything


class Recording:
    """Around the application: each body of JSON that is posted becomes a line of the file, without keys and cookies."""

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app, self._file, self._order = app, file, asyncio.Lock()
        try:
            os.close(os.open(file, os.O_CREAT | os.O_APPEND | os.O_WRONLY, ONLY_OWNER))
        except OSError as error:
            allowed = f"a file that can be written ({error.strerror})"
            raise ConfigError("record", str(file), allowed, "--record") from None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
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
            return  # what is no JSON is refused
        told = {name: value for name, value in headers.items() if name not in SECRET}
        line = {"time": time.time(), "path": scope["path"], "headers": told, "body": body}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=True) + "\n")


def recorded(app: ASGIApp, file: Path | None) -> ASGIApp:
    """The application, with a record of its requests if there is a file for it."""
    return app if file is None else Recording(app, file)
