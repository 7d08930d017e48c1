"""The routes of OpenAI's completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokenmill.serve.answer_schema import ChatAnswer, CompletionAnswer
from tokenmill.serve.answering import answered
from tokenmill.serve.chat_answers import ChatFormat
from tokenmill.serve.completion_answers import CompletionFormat
from tokenmill.serve.document import answers
from tokenmill.serve.prepare import prepare_chat, prepare_completion
from tokenmill.serve.schema import ChatBody, CompletionBody
from tokenmill.serve.service import JsonRoute, Service
from tokenmill.serve.work import Work

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
