"""The route of OpenAI's responses, as Codex uses it."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokenmill.serve.answering import answered
from tokenmill.serve.document import answers
from tokenmill.serve.protocols.answer_schema import ResponseAnswer
from tokenmill.serve.protocols.responses_body import ResponsesBody
from tokenmill.serve.protocols.responses_request import as_chat
from tokenmill.serve.service import JsonRoute, Service
from tokenmill.serve.work import Work


def responses(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/responses", responses=answers(ResponseAnswer, 400, 404, 408, 429, 503, 504, streams=True))
    async def create(request: Request, body: ResponsesBody) -> Response:
        """Answer a conversation, as OpenAI's responses do."""
        service.check_model(body.model)
        return await answered(Work(service, request, *as_chat(body, service.options.is_strict)))

    return routes
