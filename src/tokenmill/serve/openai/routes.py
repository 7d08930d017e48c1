"""The routes of OpenAI's completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokenmill.serve.facts.answer_schema import ChatAnswer, CompletionAnswer
from tokenmill.serve.facts.document import answers
from tokenmill.serve.loop.answering import answered
from tokenmill.serve.loop.service import JsonRoute, Service
from tokenmill.serve.loop.work import Work
from tokenmill.serve.openai.chat import ChatFormat
from tokenmill.serve.openai.completions import CompletionFormat
from tokenmill.serve.request.fields import ChatBody, CompletionBody
from tokenmill.serve.request.prepare import prepare_chat, prepare_completion

REFUSALS = (400, 404, 408, 429, 503, 504)


def generation(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/completions", responses=answers(CompletionAnswer, *REFUSALS, streams=True))
    async def completions(request: Request, body: CompletionBody) -> Response:
        """Continue a prompt, or several."""
        return await answered(Work(service, request, body, prepare_completion, CompletionFormat))

    @routes.post("/v1/chat/completions", responses=answers(ChatAnswer, *REFUSALS, streams=True))
    async def chat(request: Request, body: ChatBody) -> Response:
        """Answer a conversation."""
        return await answered(Work(service, request, body, prepare_chat, ChatFormat))

    return routes
