"""The routes that tell clients which model is served, in the form of OpenAI's API, or of Anthropic's to its clients."""

import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from tokenmill.serve.facts.answer_schema import ModelAnswer, ModelsAnswer
from tokenmill.serve.facts.document import answers
from tokenmill.serve.loop.service import Service

ANTHROPIC = "anthropic-version"  # a header of Anthropic's clients
FOREIGN = "claude-"  # names of models, which its clients send whatever is served


def models(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()
    name, length, created = service.options.name, service.engine.config.max_length, int(time.time())
    card = {"id": name, "object": "model", "created": created, "owned_by": "tokenmill", "max_model_len": length}
    other = {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": length - 1,
        "max_tokens": length - 1,
    }
    # What Codex looks for: the length that is configured, not the one that the model was trained for.
    described = [{"slug": name, "display_name": name, "context_window": length}]

    @routes.get("/v1/models/", include_in_schema=False)
    @routes.get("/v1/models", response_model=None, responses=answers(ModelsAnswer))
    async def all_models(request: Request) -> dict[str, Any]:
        """The model that is served."""
        if ANTHROPIC in request.headers:
            return {"data": [other], "has_more": False, "first_id": name, "last_id": name}
        return {"object": "list", "data": [card], "models": described}

    @routes.get("/v1/models/{name:path}", response_model=None, responses=answers(ModelAnswer, 404))
    async def one_model(request: Request, name: str) -> dict[str, Any]:
        """The model of that name."""
        is_other = ANTHROPIC in request.headers
        if not (is_other and name.startswith(FOREIGN)):
            service.check_model(name)
        return other if is_other else card

    return routes
