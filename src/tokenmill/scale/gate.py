"""The gate: the one application that clients see in front of several replicas, and its server, which `tokenmill serve
--replicas` runs. It computes nothing.

Requests of one conversation go to the same replica, whose cache has its rows; sessions go where their name leads.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pydantic_core
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tokenmill.scale.fleet import Call, Fleet
from tokenmill.scale.heads import SESSION_HEADERS, head_key, session_key
from tokenmill.scale.relay import Relay
from tokenmill.serve.http.access import recorded
from tokenmill.serve.http.address import is_loopback
from tokenmill.serve.http.draining import DrainingServer
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.http.guard import Guard
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.protocols import refusals_at
from tokenmill.serve.start.options import Options

LINES = ("/api/chat", "/api/generate")  # Ollama's, which are streams unless they say otherwise
GENERATES = ("/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", *LINES)
SESSIONS = "/v1/sessions/"
PROBES = ("/health", "/ping", "/ready")
PROBE_S = 5.0
SENT = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path", "client")


class Gate:
    """An ASGI application. patience_s: how long a request waits for a replica. is_draining: refuses new requests."""

    def __init__(self, fleet: Fleet, patience_s: float = 60.0) -> None:
        self._fleet, self._patience_s, self.is_draining, self.num_open = fleet, patience_s, False, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of ASGI. Keys and limits are checked before, see Guard."""
        if scope["type"] != "http":
            return
        path = scope["path"].rstrip("/") or "/"
        try:
            body = await _read(receive)
            if scope["method"] == "GET" and path in ("/metrics", "/load"):
                await (await self._of_all(path, scope))(scope, receive, send)
                return
            self._check_open(path)
            is_probe = path in PROBES
            call, state = self._call(scope, path, body), scope.setdefault("state", {})
            relay = Relay(self._fleet, call, send, PROBE_S if is_probe else self._patience_s, state)
            self.num_open += not is_probe
            try:
                await _unless_disconnected(receive, relay)
            finally:
                self.num_open -= not is_probe
        except ApiError as error:
            await refusals_at(path).respond(error)(scope, receive, send)

    def _check_open(self, path: str) -> None:
        """Raise ApiError 503 for what needs a replica, or for new requests at the end."""
        if self.is_draining and path not in ("/health", "/ping"):
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if path in PROBES and not self._fleet.replicas:
            raise ApiError(503, "there is no replica that could answer", code="no_replica")

    def _call(self, scope: Scope, path: str, body: bytes) -> Call:
        tenant = scope.get("state", {}).get("tenant", b"")
        headers = [(name, value) for name, value in scope["headers"] if name != b"authorization"]
        sent = {name: scope[name] for name in SENT if name in scope} | {"headers": headers, "state": {"tenant": tenant}}
        given, written, key = Headers(scope=scope), None, secrets.token_hex(16)
        if path in GENERATES and isinstance(read := _json(body), dict):
            is_stream = read.get("stream") is True or (read.get("stream") is None and path in LINES)
            key, written = head_key(tenant, read), Resumption() if is_stream else None
        if path.startswith(SESSIONS):
            key = session_key(tenant, path.removeprefix(SESSIONS).partition("/")[0])
        elif (named := next((given[name] for name in SESSION_HEADERS if name in given), None)) is not None:
            key = session_key(tenant, named)
        return Call(sent, body, key, written=written)

    async def _of_all(self, path: str, scope: Scope) -> Response:
        sent = {name: scope[name] for name in SENT if name in scope} | {"headers": [], "state": {}}
        found = await self._fleet.ask_all(sent)
        if path == "/load":
            return JSONResponse({"server_load": sum(_json(body).get("server_load", 0) for body in found.values())})
        pages = {replica: body.decode() for replica, body in sorted(found.items())}
        return Response(merged(pages), media_type=CONTENT_TYPE_LATEST)


async def _read(receive: Receive) -> bytes:
    parts = []
    while (message := await receive())["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    return b"".join(parts)


async def _unless_disconnected(receive: Receive, relay: Relay) -> None:
    """Run the relay, unless the client leaves: then the replica hears of it."""
    task, gone = asyncio.ensure_future(relay.run()), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(body: bytes) -> Any:
    with suppress(ValueError):
        return pydantic_core.from_json(body)
    return None


def merged(pages: dict[str, str]) -> str:
    """Merge the metrics of all replicas into one page, with the label `replica`. A family stands in one place."""
    families: dict[str, list[str]] = {}
    for replica, page in pages.items():
        name = ""
        for line in page.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
            lines = families.setdefault(name, [])
            if not line.startswith("#"):
                lines.append(_labelled(line, replica))
            elif line not in lines:
                lines.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def _labelled(sample: str, replica: str) -> str:
    name, brace, rest = sample.partition("{")
    if brace:
        return f'{name}{{replica="{replica}",{rest}'
    name, _, value = sample.partition(" ")
    return f'{name}{{replica="{replica}"}} {value}'


class GateServer(DrainingServer):
    """The gate at a socket, until a signal comes or `drain` is called. tell: writes a line for each request."""

    def __init__(
        self, fleet: Fleet, taken: socket.socket, options: Options, tell: Callable[[str], None] | None = None
    ) -> None:
        self._fleet, self._taken, self._gate = fleet, taken, Gate(fleet)
        super().__init__(Guard(recorded(self._gate, options.record), options, is_loopback(taken)), options, tell)

    def serve_to_end(self) -> None:
        """Serve until the end."""
        self.run(sockets=[self._taken])

    @property
    def num_open(self) -> int:
        return self._gate.num_open

    def refuse_new(self) -> None:
        self._gate.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start as uvicorn.Server does. The router begins with the first call, and only then knows the replicas."""
        await self._fleet.start()
        await super().startup(sockets)
