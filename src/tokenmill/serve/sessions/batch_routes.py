"""The routes for batches: requests in a file, which are answered when nobody waits."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from tokenmill.serve.facts.document import answers
from tokenmill.serve.loop.service import JsonRoute, Service
from tokenmill.serve.sessions.batch_schema import BatchAnswer, BatchBody, BatchesAnswer
from tokenmill.serve.sessions.file_routes import After, Limit, ask
from tokenmill.serve.sessions.stored import LISTED, page_of

Json = dict[str, Any]


def batches(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute, prefix="/v1/batches")

    @routes.post("", response_model=None, responses=answers(BatchAnswer, 400, 404, 408, 503, 507))
    async def create(body: BatchBody, request: Request) -> Json:
        """Have the requests of a file answered, when nobody waits."""
        service.check_ready()
        service.check(body)
        given = body.endpoint, body.input_file_id, body.metadata
        return await ask(service, request, lambda at, tenant: at.create(tenant, *given))

    @routes.get("", response_model=None, responses=answers(BatchesAnswer, 400, 404))
    async def listed(request: Request, after: After = None, limit: Limit = LISTED) -> Json:
        """The batches of a client, the newest first."""
        return await ask(service, request, lambda at, tenant: page_of(at.batches.all(tenant), after, limit))

    @routes.get("/{name}", response_model=None, responses=answers(BatchAnswer, 404))
    async def batch(name: str, request: Request) -> Json:
        """One batch, and how far it is."""
        return await ask(service, request, lambda at, tenant: at.read(tenant, name))

    @routes.post("/{name}/cancel", response_model=None, responses=answers(BatchAnswer, 404, 409, 507))
    async def cancel(name: str, request: Request) -> Json:
        """End a batch with the answers that are there."""
        return await ask(service, request, lambda at, tenant: at.cancel(tenant, name))

    return routes
