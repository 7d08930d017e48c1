"""The Service that all routes use, and the reading of their bodies."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pydantic_core
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from tokenmill.engine.engine import Engine
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.loop.admission import Admission
from tokenmill.serve.loop.driver import Driver
from tokenmill.serve.request.fields import Body, check_model
from tokenmill.serve.request.writer import system_fingerprint
from tokenmill.serve.sessions.batch_worker import BatchWorker
from tokenmill.serve.sessions.sessions import Sessions
from tokenmill.serve.start.options import Options

THREADS_OF_ONE = 3  # of the six or more that asyncio has for all
T = TypeVar("T")


@dataclass
class Service:
    """One engine, served. sessions, batches: None if none are kept. is_draining: new requests are refused.

    fingerprint: see answers.system_fingerprint.
    """

    engine: Engine
    driver: Driver
    admission: Admission
    options: Options
    sessions: Sessions | None = None
    batches: BatchWorker | None = None
    is_draining: bool = False
    _turns: defaultdict[bytes, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(partial(asyncio.Semaphore, THREADS_OF_ONE))
    )

    def __post_init__(self) -> None:
        self.fingerprint = system_fingerprint(self.engine.core.loaded)

    async def in_thread(self, request: Request, do: Callable[..., T], *given: Any) -> T:
        """Call a function in a thread. One key has few at once, so that nobody waits for a hundred of another's."""
        async with self._turns[tenant_of(request)]:
            return await asyncio.to_thread(do, *given)

    def check_ready(self) -> None:
        """ApiError 503 if no request can be taken."""
        if self.is_draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if self.driver.error is not None:
            raise self.driver.error

    def check_model(self, name: str | None) -> None:
        """ApiError 404 for another model than the one that is served."""
        check_model(name, self.options.name)

    def check(self, body: Body) -> None:
        """ApiError for a body that asks for what is not served."""
        self.check_model(body.model)
        body.check()
        if self.options.is_strict and body.unknown:
            raise ApiError(400, f"there is no field {body.unknown[0]!r}", body.unknown[0], "unknown_parameter")


def tenant_of(request: Request) -> bytes:
    """The digest that stands for the client's key; empty on a server without keys. See Guard."""
    tenant: bytes = getattr(request.state, "tenant", b"")
    return tenant


class _JsonRequest(Request):
    """Reads JSON with a parser that has a limit on depth and takes no lone surrogates."""

    async def json(self) -> Any:
        """See Request."""
        try:
            return pydantic_core.from_json(await self.body())
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from None


class JsonRoute(APIRoute):
    """A route whose body is read by that parser.

    It must say that it is JSON: a web page can send anything else to a server at 127.0.0.1 without asking it first.
    """

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """See APIRoute."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            read = _JsonRequest(request.scope, request.receive)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if self.body_field is not None and kind != "application/json":
                await read.body()
                raise ApiError(415, "send the body as JSON, with the header Content-Type: application/json")
            return await handler(read)

        return handle
