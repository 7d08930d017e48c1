"""The routes of Ollama's API that generate, as editors and chat programs use them."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tokenmill.serve.facts.document import answers
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.loop.answering import answered
from tokenmill.serve.loop.service import Service
from tokenmill.serve.loop.work import LINES, Work
from tokenmill.serve.ollama.answer_schema import OllamaChatAnswer, OllamaError, OllamaGenerateAnswer
from tokenmill.serve.ollama.body import OllamaBody, OllamaChatBody, OllamaGenerateBody
from tokenmill.serve.ollama.facts import ModelFacts
from tokenmill.serve.ollama.generate import translate_generate
from tokenmill.serve.ollama.names import check_served, unloads
from tokenmill.serve.ollama.parse import translate_chat
from tokenmill.serve.ollama.program_route import ProgramRoute
from tokenmill.serve.ollama.writer import Asked, OllamaChatFormat, OllamaGenerateFormat, loaded
from tokenmill.serve.request.ask import Translated

REFUSALS = (400, 404, 408, 429, 503, 504)
PLAIN = "/api/generate takes a prompt as text"
STAYS = "the model stays loaded as long as the server runs"
NOTHING: dict[type[OllamaBody], dict[str, Any]] = {
    OllamaChatBody: {"message": {"role": "assistant", "content": ""}},
    OllamaGenerateBody: {"response": ""},
}
"""The fields of text in an answer that has none."""


def ollama(service: Service) -> APIRouter:
    """The routes."""
    routes, facts = APIRouter(route_class=ProgramRoute), ModelFacts(service)

    @routes.post("/api/chat", responses=answers(OllamaChatAnswer, *REFUSALS, lines=True, error=OllamaError))
    async def chat(request: Request, body: OllamaChatBody) -> Response:
        """Answer a conversation, as Ollama does."""
        arrived_s, wants_unload = time.perf_counter(), _checked(service, body)
        if not body.messages:
            return _loaded(service, body, wants_unload)
        if not facts.has_template:
            raise ApiError(400, f'"{body.model}" does not support chat: it has no chat template. {PLAIN}', "messages")
        made = translate_chat(body, facts.thinks, facts.num_positions)
        _check_strict(service, made)
        asked = Asked(body.model, arrived_s, may_call=bool(body.tools))
        form: Callable[..., Any] = partial(OllamaChatFormat, asked)
        return await answered(Work(service, request, made.body(), made.prepare, form, LINES))

    @routes.post("/api/generate", responses=answers(OllamaGenerateAnswer, *REFUSALS, lines=True, error=OllamaError))
    async def generate(request: Request, body: OllamaGenerateBody) -> Response:
        """Continue a prompt, in the model's chat template unless it is `raw`, as Ollama does."""
        arrived_s, wants_unload = time.perf_counter(), _checked(service, body)
        if not body.prompt:
            return _loaded(service, body, wants_unload)
        one = translate_generate(body, facts)
        _check_strict(service, one.made)
        form = partial(OllamaGenerateFormat, Asked(body.model, arrived_s, has_context=not body.raw))
        return await answered(Work(service, request, one.body, one.prepare, form, LINES))

    return routes


def _checked(service: Service, body: OllamaBody) -> bool:
    """Check the model's name and keep_alive; whether the model is to be unloaded."""
    check_served(body.model, service.options.name)
    return unloads(body.keep_alive)


def _check_strict(service: Service, made: Translated) -> None:
    if service.options.is_strict:
        made.check_strict()


def _loaded(service: Service, body: OllamaBody, wants_unload: bool) -> Response:
    """The answer to a body without a prompt."""
    service.check_ready()
    fields = NOTHING[type(body)]
    if wants_unload:
        return JSONResponse(loaded(body.model, fields, "unload", [STAYS]))
    return JSONResponse(loaded(body.model, fields, "load"))
