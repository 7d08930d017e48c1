"""The route of OpenAI's responses, as Codex uses it."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokenmill.serve.facts.document import answers
from tokenmill.serve.facts.protocol_schema import ResponseAnswer
from tokenmill.serve.loop.answering import answered
from tokenmill.serve.loop.service import JsonRoute, Service
from tokenmill.serve.loop.work import Work
from tokenmill.serve.responses.body import ResponsesBody
from tokenmill.serve.responses.request import as_chat


def responses(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/responses", responses=answers(ResponseAnswer, 400, 404, 408, 429, 503, 504, streams=True))
    async def create(request: Request, body: ResponsesBody) -> Response:
        """Answer a conversation, as OpenAI's responses do."""
        service.check_model(body.model)
        return await answered(Work(service, request, *as_chat(body, service.options.is_strict)))

    return routes
