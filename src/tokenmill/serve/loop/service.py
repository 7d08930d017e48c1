"""The Service, which all routes share, and the Call: one request to a route, whose body is read here."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from tokenmill.engine.engine import Engine
from tokenmill.errors import ConfigError
from tokenmill.serve.http.errors import CLIENT_CLOSED, ApiError
from tokenmill.serve.loop.driver import Driver
from tokenmill.serve.loop.limits import Admission
from tokenmill.serve.protocols import Route
from tokenmill.serve.request.fields import Body
from tokenmill.serve.request.prompt import Model
from tokenmill.serve.request.writer import system_fingerprint
from tokenmill.serve.sessions.batch_worker import BatchWorker
from tokenmill.serve.sessions.sessions import Sessions
from tokenmill.serve.start.options import Options

THREADS_OF_ONE = 3  # of the six or more that asyncio has for all
WAITERS = 64  # threads that wait for the engine; one key gets THREADS_OF_ONE of them at most
OF_PAGES = ("origin", "sec-fetch-site")  # headers that browsers send, and no page can leave out
T = TypeVar("T")
Form = TypeVar("Form", bound=BaseModel)


@dataclass
class Service:
    """One engine, served. sessions, batches: None if they are off. routes: all that it answers. is_draining: new
    requests are refused. created: when it began, in seconds. fingerprint: see writer.system_fingerprint.
    """

    engine: Engine
    driver: Driver
    admission: Admission
    options: Options
    sessions: Sessions | None = None
    batches: BatchWorker | None = None
    routes: Sequence[Route] = ()
    is_draining: bool = False
    created: float = field(default_factory=time.time)
    _waiters: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, WAITERS, "waits for the engine"))
    _turns: defaultdict[bytes, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(partial(asyncio.Semaphore, THREADS_OF_ONE))
    )

    def __post_init__(self) -> None:
        loaded = self.engine.core.loaded
        self.fingerprint = system_fingerprint(loaded)
        options = self.options
        self.model = Model(loaded, options.name, options.is_strict, self.engine.core.adapters, options.may_go)
        of_all = self.engine.core.adapter(None)
        for name, adapter in self.engine.adapters.items():
            if adapter is not of_all and self.model.is_own(name):
                raise ConfigError("lora_modules", name, "another name than the model's own (--served-model-name)")

    async def in_thread(self, request: Request, do: Callable[..., T], *given: Any) -> T:
        """Call a function in a thread. One key has few at once, so that nobody waits for a hundred of another's."""
        async with self._turns[tenant_of(request)]:
            return await asyncio.to_thread(do, *given)

    async def waiting(self, request: Request, do: Callable[..., T], *given: Any) -> T:
        """Call a function in a thread, which mostly waits for the engine. One key has few of these at once, too."""
        async with self._turns[b"waits " + tenant_of(request)]:
            return await asyncio.get_running_loop().run_in_executor(self._waiters, do, *given)

    def check_ready(self) -> None:
        """Raise ApiError 503 if no request can be taken."""
        if self.is_draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if self.driver.error is not None:
            raise self.driver.error


def tenant_of(request: Request) -> bytes:
    """Return the digest that stands for the client's key; it is empty on a server without keys. See Guard."""
    tenant: bytes = getattr(request.state, "tenant", b"")
    return tenant


@dataclass
class Call:
    """One call of a route. body, query: as they were read."""

    service: Service
    request: Request
    route: Route
    body: Any = None
    query: Any = None

    @property
    def name(self) -> str:
        """The name in the path."""
        return str(self.request.path_params["name"])

    @property
    def tenant(self) -> bytes:
        """The client; see tenant_of."""
        return tenant_of(self.request)


def endpoint(
    service: Service, route: Route, do: Callable[[Call], Awaitable[Any]]
) -> Callable[[Request], Awaitable[Response]]:
    """Make the function that reads the requests of a route and answers them as `do` says."""

    async def answer(request: Request) -> Response:
        call = Call(service, request, route)
        if route.body is not None:
            call.body = await read_body(request, route, route.body)
        if route.query is not None:
            call.query = route.query.model_validate(dict(request.query_params))
        found = await do(call)
        return found if isinstance(found, Response) else JSONResponse(found)

    return answer


async def read_json(request: Request, route: Route) -> Any:
    """Read the JSON of a body, with a parser that has a limit on depth and takes no lone surrogates. None without one.

    It must say that it is JSON: a web page can send anything else to a server at 127.0.0.1 without asking it first. A
    protocol whose documents show curl without that header does not want it of programs.
    """
    try:
        content = await request.body()
    except ClientDisconnect:
        raise ApiError(CLIENT_CLOSED, "the client has gone") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and (route.protocol.needs_type or any(name in request.headers for name in OF_PAGES)):
        raise ApiError(415, "send the body as JSON, with the header Content-Type: application/json")
    try:
        return pydantic_core.from_json(content) if content else None
    except ValueError as error:
        raise ApiError(400, f"the body is no JSON: {error}") from None


async def read_body(request: Request, route: Route, form: type[Form]) -> Form:
    """Read a body as a form. ApiError or ValidationError for another."""
    given = await read_json(request, route)
    if not isinstance(given, dict):
        raise ApiError(400, "the body: an object is needed")
    if issubclass(form, Body):
        request.state.spelled = form.spelled(given)
    return form.model_validate(given)
