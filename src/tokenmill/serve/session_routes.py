"""The routes by which clients keep texts by name."""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path
from starlette.requests import Request

from tokenmill.serve.answer_schema import ErasedAnswer, RestoredAnswer, SavedAnswer
from tokenmill.serve.document import answers
from tokenmill.serve.errors import ApiError
from tokenmill.serve.schema import SessionBody
from tokenmill.serve.service import JsonRoute, Service, tenant_of
from tokenmill.serve.sessions import NAME, Sessions
from tokenmill.serve.tokens import encode

__all__ = ["sessions"]

T = TypeVar("T")
SESSION = (400, 404, 429, 503)  # what the routes of sessions refuse with
SessionName = Annotated[str, Path(json_schema_extra={"pattern": f"^{NAME.pattern}$"}, examples=["tale"])]


def sessions(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute, prefix="/v1/sessions")

    async def kept(do: Callable[[Sessions, bytes], T], request: Request) -> T:
        service.check_ready()
        if (held := service.sessions) is None:
            raise ApiError(404, "this server keeps no sessions", code="no_sessions")
        return await service.driver.call(lambda: do(held, tenant_of(request)))

    @routes.post("/{name}/save", response_model=None, responses=answers(SavedAnswer, *SESSION, 408, 507))
    async def save(name: SessionName, body: SessionBody, request: Request) -> dict[str, Any]:
        """Keep a prompt or a conversation, with its rows."""
        service.check(body)
        ids = await asyncio.to_thread(encode, service.engine, body)
        return await kept(lambda held, tenant: held.save(tenant, name, ids), request)

    @routes.post("/{name}/restore", response_model=None, responses=answers(RestoredAnswer, *SESSION, 409))
    async def restore(name: SessionName, request: Request) -> dict[str, Any]:
        """Load what was saved; requests that begin with it find its rows."""
        return await kept(lambda held, tenant: held.restore(tenant, name), request)

    @routes.post("/{name}/erase", response_model=None, responses=answers(ErasedAnswer, *SESSION))
    async def erase(name: SessionName, request: Request) -> dict[str, Any]:
        """Forget it."""
        return await kept(lambda held, tenant: held.erase(tenant, name), request)

    return routes
