"""The route of OpenAI's responses, as Codex uses it."""

from functools import partial
from typing import Any

import pydantic_core
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tokenmill.serve.answering import answered
from tokenmill.serve.document import answers
from tokenmill.serve.protocols.answer_schema import ResponseAnswer
from tokenmill.serve.protocols.responses_body import ResponsesBody
from tokenmill.serve.protocols.responses_input import translate
from tokenmill.serve.protocols.responses_output import ResponsesFormat
from tokenmill.serve.service import JsonRoute, Service
from tokenmill.serve.work import Work

ECHOED: tuple[str, ...] = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "reasoning",
    "temperature",
    "text",
)
ECHOED += ("tool_choice", "top_p", "truncation")


def responses(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/responses", responses=answers(ResponseAnswer, 400, 404, 408, 429, 503, 504, streams=True))
    async def create(request: Request, body: ResponsesBody) -> Response:
        """Answer a conversation, as OpenAI's responses do."""
        service.check_model(body.model)
        body.check()
        made, names = translate(body)
        if service.options.is_strict:
            made.check_strict()
        form = partial(ResponsesFormat, _echoed(body), names)
        return await answered(Work(service, request, made.body(), made.prepare, form))

    return routes


def _echoed(body: ResponsesBody) -> dict[str, Any]:
    """The fields of a request that its answer repeats. Nothing is stored, whatever was asked.

    A number such as 1e999, which to a float is infinite, is null in it.
    """
    given = {**{name: getattr(body, name) for name in ECHOED}, "tools": body.tools or []}
    written = pydantic_core.from_json(pydantic_core.to_json(given, inf_nan_mode="null"))
    return {**written, "previous_response_id": None, "store": False}
