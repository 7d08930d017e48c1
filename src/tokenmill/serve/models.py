"""The routes that tell clients which model is served."""

import time
from typing import Any

from fastapi import APIRouter

from tokenmill.serve.answer_schema import ModelAnswer, ModelsAnswer
from tokenmill.serve.document import answers
from tokenmill.serve.service import Service


def models(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()
    card = {
        "id": service.options.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "tokenmill",
        "max_model_len": service.engine.config.max_length,
    }

    @routes.get("/v1/models/", include_in_schema=False)
    @routes.get("/v1/models", response_model=None, responses=answers(ModelsAnswer))
    async def all_models() -> dict[str, Any]:
        """The model that is served."""
        return {"object": "list", "data": [card]}

    @routes.get("/v1/models/{name:path}", response_model=None, responses=answers(ModelAnswer, 404))
    async def one_model(name: str) -> dict[str, Any]:
        """The model of that name."""
        service.check_model(name)
        return card

    return routes
