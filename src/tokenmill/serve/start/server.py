"""The server of one engine: all that stands between it and the sockets, its application, and its life.

What the first request would wait for is done before the server says that it is ready. Weights that are mapped from a
file come into memory with the first step; the chat template is compiled when it is first used. SIGTERM or Ctrl-C begins
to drain: new requests get 503, what runs goes on for as long as the timeout allows and gets an error then, and the
process ends. A second one ends it now.
"""

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint
from starlette.types import ASGIApp, Message

from tokenmill.engine.engine import Engine
from tokenmill.errors import TokenmillError
from tokenmill.serve.http.access import recorded
from tokenmill.serve.http.address import is_loopback
from tokenmill.serve.http.draining import DrainingServer
from tokenmill.serve.http.errors import NOT_SPELLED, ApiError, EngineDied
from tokenmill.serve.http.guard import Guard
from tokenmill.serve.loop.answer import generate
from tokenmill.serve.loop.driver import Driver
from tokenmill.serve.loop.limits import Admission, Pace
from tokenmill.serve.loop.metrics import Metrics
from tokenmill.serve.loop.service import Service, endpoint
from tokenmill.serve.protocols import protocol_at
from tokenmill.serve.request.calling import set_tools
from tokenmill.serve.routes import ROUTES, routes_at
from tokenmill.serve.sessions.batch_worker import BatchWorker
from tokenmill.serve.sessions.sessions import Sessions
from tokenmill.serve.start.options import Options

BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()


class Served:
    """The parts of a server for one engine. on_failure: see Driver. tools: how it calls functions, in words."""

    def __init__(self, engine: Engine, options: Options, on_failure: Callable[[], None] = lambda: None) -> None:
        self.engine = engine
        metrics = Metrics(engine.core, options.name, options.metrics_prefix)
        self.pace = Pace(engine.core.scheduler, options.stall_s)
        self.driver = Driver(engine.core, metrics, on_failure)
        self.admission = Admission(metrics, engine.config.max_sequences + options.max_queued, len(options.keys))
        kept = Sessions(engine, options.session_dir) if options.session_dir is not None else None
        self.batches = BatchWorker(engine, options, options.batch_dir) if options.batch_dir is not None else None
        self.service = Service(engine, self.driver, self.admission, options, kept, self.batches, ROUTES)
        self.app = make_app(self.service)
        self.tools = set_tools(engine.tokenizer, options.tool_format) if engine.tokenizer is not None else None
        self._observed = ExitStack()

    def begin(self) -> None:
        """Do what the first request would wait for, and begin to serve."""
        use_engine(self.engine)  # before anything measures steps or counts tokens
        self._observed.enter_context(self.engine.core.observed_by(self.pace))
        self.driver.start()
        if self.batches is not None:
            self.batches.start()

    def begin_to_end(self) -> None:
        """Take no more requests."""
        self.service.is_draining = True
        if self.batches is not None:
            self.batches.begin_to_stop()

    def end(self, is_hung: Callable[[], bool] | None = None) -> bool:
        """End what still runs, and let go of the engine; return whether it lived to the end.

        A step that is being made is waited for, unless it hangs: then the engine is left as it is, for the end of the
        process. is_hung: see Driver.stop.
        """
        is_hung = is_hung or (lambda: self.driver.is_hung)
        has_stopped = (self.batches is None or self.batches.stop(is_hung)) and self.driver.stop(is_hung)
        if has_stopped:
            self.engine.close()
        self._observed.close()
        return has_stopped and not self.driver.has_failed


def make_app(service: Service) -> Starlette:
    """Make the application: all routes, and errors in the form of each protocol."""
    lines = [
        Endpoint(each.path, endpoint(service, each, each.do or generate), methods=[each.method])
        for each in service.routes
    ]
    return Starlette(routes=lines, exception_handlers=handlers_of_errors())


def handlers_of_errors() -> dict[Any, Any]:
    """Return the handlers of an application: each error in the form of its path's protocol."""
    return dict.fromkeys((ApiError, TokenmillError, ValidationError, HTTPException, EngineDied, Exception), _refuse)


async def _refuse(request: Request, error: Exception) -> Response:
    path, protocol = request.scope["path"], protocol_at(request.scope["path"])
    if (at := routes_at(path)) and isinstance(error, HTTPException) and error.status_code == 405:
        error = HTTPException(405, headers={"Allow": ", ".join(sorted(route.method for route in at))})
    elif not at and protocol.absent:
        error = ApiError(404, protocol.absent)
    return protocol.refusals.respond(error, getattr(request.state, "spelled", NOT_SPELLED))


def use_engine(engine: Engine) -> None:
    """Compute two tokens, which is a step that prefills and one that decodes. A block that is full would be kept.

    A model without a head makes a vector.
    """
    if not engine.model_config.has_head:
        engine.embed([0], pooling="mean", prompt_name="")
        return
    count = min(2, min(engine.config.max_length, engine.core.scheduler.allocator.block_size) - 1)
    if count > 0:
        engine.generate([0], max_new_tokens=count, temperature=1.0, seed=0, ignore_eos=True)


async def use_routes(app: ASGIApp) -> None:
    """Have a conversation tokenized. A model that has no chat template refuses it, which does as well."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": "/tokenize",
        "raw_path": b"/tokenize",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY}

    async def send(_: Message) -> None:
        pass

    await app(scope, receive, send)


class Server(DrainingServer):
    """An engine that is served at a socket, until a signal comes or `drain` is called. It is then closed."""

    def __init__(
        self, engine: Engine, taken: socket.socket, options: Options, tell: Callable[[str], None] | None = None
    ) -> None:
        """Take a socket. tell: writes a line for each request. tools: see Served."""
        self._taken, self.served = taken, Served(engine, options, self._end)
        self.driver, self.admission, self.tools = self.served.driver, self.served.admission, self.served.tools
        app = Guard(recorded(self.served.app, options.record), options, is_loopback(taken))
        super().__init__(app, options, tell)

    def serve_to_end(self) -> bool:
        """Serve; return whether the engine lived to the end."""
        try:
            self.served.begin()
            self.run(sockets=[self._taken])
        finally:
            has_lived = self.served.end(lambda: self.ends_now or self.driver.is_hung)
        return has_lived

    @property
    def num_open(self) -> int:
        return self.admission.num_open

    def refuse_new(self) -> None:
        self.served.begin_to_end()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server: connections are taken from here on."""
        await use_routes(self.served.app)
        await super().startup(sockets)

    def _end(self) -> None:
        self.should_exit = True
