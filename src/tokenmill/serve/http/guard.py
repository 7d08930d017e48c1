"""The checks before every route: keys, the Host header, limits on the size and the slowness of clients.

It is ASGI around the application, so that nothing of a request is read or parsed before it may come in.
"""

import asyncio
import hmac
from contextlib import suppress
from hashlib import blake2b

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.protocols import refusals_at
from tokenmill.serve.routes import routes_at
from tokenmill.serve.start.options import Options

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
BODY_S = 30.0  # for its whole body
FILE_S, FORM_BYTES = 900.0, 65536  # a file, which is larger, in its form
MAX_HEAD, MAX_HEADERS = 65536, 200
LINGER_S = 1.0  # for the rest of a body that nobody wants


class Guard:
    """The refusal of requests that may not come in. It knows a client by its key: scope["state"]["tenant"]."""

    def __init__(self, app: ASGIApp, options: Options, is_loopback: bool) -> None:
        self._app, self._options, self._is_loopback = app, options, is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        is_file = any(route.form is not None for route in routes_at(scope["path"]))
        max_bytes = self._options.max_file + FORM_BYTES if is_file else self._options.max_body
        body = _Body(receive, max_bytes, FILE_S if is_file else BODY_S)
        send = _after_the_body(body, send)
        if (refusal := self._refusal(scope, max_bytes)) is not None:
            response = refusals_at(scope["path"]).respond(refusal)
            response.headers["Connection"] = "close"  # since the body is not read
            await response(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # uvicorn, which has the scope as it was, leaves the body out
        await self._app(scope, body.receive, send)

    def _refusal(self, scope: Scope, max_bytes: int) -> ApiError | None:
        headers = Headers(scope=scope)
        if self._options.keys:
            if not _is_open(scope["path"]) and not self._admits(scope, headers):
                return ApiError(401, "give a key of this server: Authorization: Bearer KEY", code="invalid_api_key")
        elif self._is_loopback and _host(headers.get("host", "")) not in LOOPBACK:
            return ApiError(403, "this server has no key, so it answers under the names of this machine only")
        if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD:
            return ApiError(431, f"the headers are over {MAX_HEAD:,} bytes, or more than {MAX_HEADERS}")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > max_bytes:
            return _too_large(max_bytes)
        if headers.get("content-encoding", "identity") != "identity":
            return ApiError(415, "send bodies as they are, without content-encoding")
        return None

    def _admits(self, scope: Scope, headers: Headers) -> bool:
        """Return whether a key was given, as OpenAI's API takes it or as Anthropic's does."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        given = given if kind.lower() == "bearer" else headers.get("x-api-key", "")
        found = [hmac.compare_digest(given.strip().encode(), key.encode()) for key in self._options.keys]
        if not any(found):
            return False
        key = self._options.keys[found.index(True)]
        scope.setdefault("state", {})["tenant"] = blake2b(key.encode(), digest_size=16).digest()
        return True


class _Body:
    """A body that may not be too large, nor take too long."""

    def __init__(self, receive: Receive, max_bytes: int, within_s: float) -> None:
        self._receive, self._max_bytes, self._size, self.is_whole = receive, max_bytes, 0, False
        self._within_s = within_s
        self._ends_s = asyncio.get_running_loop().time() + within_s

    async def receive(self) -> Message:
        if self.is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._ends_s):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, f"the body did not come within {self._within_s:g} s") from None
        self._size += len(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)
        if self._size > self._max_bytes:
            raise _too_large(self._max_bytes)
        return message

    async def drop(self) -> None:
        """Read what is left, for a moment, and forget it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while not self.is_whole:
                    self.is_whole = not (await self._receive()).get("more_body", False)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is over {max_bytes:,} bytes")


def _after_the_body(body: _Body, send: Send) -> Send:
    """End a refusal when the client has sent its body.

    To close a connection on which something is unread resets it, and a client that sends its headers first and its body
    then would see that instead of the response.
    """
    is_refusal = False

    async def lingering(message: Message) -> None:
        nonlocal is_refusal
        if message["type"] == "http.response.start":
            is_refusal = message["status"] >= 400
        elif is_refusal and not message.get("more_body") and not body.is_whole:
            await send({**message, "more_body": True})
            await body.drop()
            message = {"type": "http.response.body"}
        await send(message)

    return lingering


def _is_open(path: str) -> bool:
    """Return whether a path wants no key. Probes of load balancers may ask with a slash at the end."""
    return any(route.is_open for route in (*routes_at(path), *routes_at(path.removesuffix("/"))))


def _host(header: str) -> str:
    """Return the host of a Host header, without the port."""
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdecimal() else header).lower()
