"""The routes of Anthropic's messages, as Claude Code uses them."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tokenmill.serve.facts.document import answers
from tokenmill.serve.facts.models import FOREIGN
from tokenmill.serve.facts.protocol_schema import CountAnswer, MessageAnswer, MessagesError
from tokenmill.serve.loop.answering import answered
from tokenmill.serve.loop.service import JsonRoute, Service
from tokenmill.serve.loop.work import Work
from tokenmill.serve.messages.body import CountBody, MessagesBody
from tokenmill.serve.messages.parse import translate
from tokenmill.serve.messages.writer import MessagesFormat
from tokenmill.serve.request.ask import Translated


def messages(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post(
        "/v1/messages",
        responses=answers(MessageAnswer, 400, 404, 408, 429, 503, 504, streams=True, error=MessagesError),
    )
    async def create(request: Request, body: MessagesBody) -> Response:
        """Answer a conversation, as Anthropic's API does."""
        made = _translated(service, body)
        return await answered(Work(service, request, made.body(), made.prepare, MessagesFormat))

    @routes.post("/v1/messages/count_tokens", responses=answers(CountAnswer, 400, 404, 408, error=MessagesError))
    async def count_tokens(request: Request, body: CountBody) -> Response:
        """The number of tokens of a conversation."""
        made = _translated(service, body)
        count = await service.in_thread(request, made.count, service.engine.core)
        return JSONResponse({"input_tokens": count})

    return routes


def _translated(service: Service, body: CountBody) -> Translated:
    if not (body.model or "").startswith(FOREIGN):
        service.check_model(body.model)
    body.check()
    made = translate(body)
    if service.options.is_strict:
        made.check_strict()
    return made
