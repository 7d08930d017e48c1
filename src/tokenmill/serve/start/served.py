"""An engine that is served: all that stands between it and the sockets, with its application."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as Endpoint

from tokenmill.engine.engine import Engine
from tokenmill.errors import TokenmillError
from tokenmill.serve.http.errors import ApiError, EngineDied
from tokenmill.serve.loop.admission import Admission
from tokenmill.serve.loop.answer import generate
from tokenmill.serve.loop.driver import Driver
from tokenmill.serve.loop.metrics import Metrics
from tokenmill.serve.loop.pace import Pace
from tokenmill.serve.loop.service import Service, endpoint
from tokenmill.serve.protocols import protocol_at
from tokenmill.serve.request.calling import set_tools
from tokenmill.serve.routes import ROUTES, routes_at
from tokenmill.serve.sessions.batch_worker import BatchWorker
from tokenmill.serve.sessions.sessions import Sessions
from tokenmill.serve.start.options import Options


class Served:
    """The parts of a server for one engine, and its application. on_failure: see Driver. tools: how it calls functions,
    in words.
    """

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


def make_app(service: Service) -> Starlette:
    """Make the application: all routes, and errors in the form of each protocol."""
    kinds = (ApiError, TokenmillError, ValidationError, HTTPException, EngineDied, Exception)
    handlers: dict[Any, Any] = dict.fromkeys(kinds, _refuse)
    lines = [
        Endpoint(each.path, endpoint(service, each, each.do or generate), methods=[each.method])
        for each in service.routes
    ]
    return Starlette(routes=lines, exception_handlers=handlers)


async def _refuse(request: Request, error: Exception) -> Response:
    path, protocol = request.scope["path"], protocol_at(request.scope["path"])
    if (at := routes_at(path)) and isinstance(error, HTTPException) and error.status_code == 405:
        error = HTTPException(405, headers={"Allow": ", ".join(sorted(route.method for route in at))})
    elif not at and protocol.absent:
        error = ApiError(404, protocol.absent)
    return protocol.refusals.respond(error)
