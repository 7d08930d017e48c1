"""The routes by which clients keep texts by name."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path
from starlette.requests import Request

from tokenmill.engine.engine import Engine
from tokenmill.engine.session import Session
from tokenmill.serve.facts.answer_schema import ErasedAnswer, RestoredAnswer, SavedAnswer
from tokenmill.serve.facts.document import answers
from tokenmill.serve.facts.tokens import encode, warnings_for
from tokenmill.serve.http.errors import ApiError, TooLong, about
from tokenmill.serve.loop.service import JsonRoute, Service, tenant_of
from tokenmill.serve.request.fields import SessionBody
from tokenmill.serve.sessions.sessions import NAME, Sessions

T = TypeVar("T")
SESSION = (400, 404, 429, 503)  # what the routes of sessions refuse with
SessionName = Annotated[str, Path(json_schema_extra={"pattern": f"^{NAME.pattern}$"}, examples=["tale"])]


def sessions(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute, prefix="/v1/sessions")

    def held() -> Sessions:
        service.check_ready()
        if service.sessions is None:
            raise ApiError(404, "this server keeps no sessions", code="no_sessions")
        return service.sessions

    async def with_rows(request: Request, make: Callable[[bytes], Session], do: Callable[[bytes, Session], T]) -> T:
        """Make a session, have its rows beside what else runs, and do something with it."""
        driver, tenant = service.driver, tenant_of(request)
        with service.admission.slots(1, tenant):
            session = await driver.call(lambda: make(tenant))
            return await driver.keep(session, tenant, lambda: do(tenant, session))

    @routes.post("/{name}/save", response_model=None, responses=answers(SavedAnswer, *SESSION, 408, 507))
    async def save(name: SessionName, body: SessionBody, request: Request) -> dict[str, Any]:
        """Keep a prompt or a conversation, with its rows."""
        service.check(body)
        kept = held()
        ids = await service.in_thread(request, _text, service.engine, body)
        begin: Callable[[bytes], Session] = lambda who: kept.begin(who, name, ids)  # noqa: E731
        saved = await with_rows(request, begin, lambda who, session: kept.save(who, name, session))
        return saved | warnings_for(service.engine, body)

    @routes.post("/{name}/restore", response_model=None, responses=answers(RestoredAnswer, *SESSION, 409))
    async def restore(name: SessionName, request: Request) -> dict[str, Any]:
        """Load what was saved; requests that begin with it find its rows."""
        kept = held()
        return await with_rows(request, lambda who: kept.open(who, name), lambda who, one: kept.hold(who, name, one))

    @routes.post("/{name}/erase", response_model=None, responses=answers(ErasedAnswer, *SESSION))
    async def erase(name: SessionName, request: Request) -> dict[str, Any]:
        """Forget it."""
        kept, tenant = held(), tenant_of(request)
        return await service.driver.call(lambda: kept.erase(tenant, name))

    return routes


def _text(engine: Engine, body: SessionBody) -> list[int]:
    """The tokens that a session may keep."""
    ids = encode(engine, body)
    field = "prompt" if body.messages is None else "messages"
    if len(ids) > engine.config.max_length:
        raise TooLong(len(ids), engine.config.max_length, field)
    with about(field):
        return engine.encode(ids)  # which refuses none at all
