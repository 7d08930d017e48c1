"""The routes that generate nothing: the model, its tokens, and how the server is."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tokenmill.engine.engine import Engine
from tokenmill.serve.answer_schema import (
    ErasedAnswer,
    ModelAnswer,
    ModelsAnswer,
    RestoredAnswer,
    SavedAnswer,
    StatusAnswer,
    TextAnswer,
    TokenizerAnswer,
    TokensAnswer,
    VersionAnswer,
)
from tokenmill.serve.document import answers
from tokenmill.serve.errors import ApiError, EngineDied
from tokenmill.serve.schema import DetokenizeBody, SessionBody, TokenizeBody
from tokenmill.serve.service import JsonRoute, Service, tenant_of
from tokenmill.serve.sessions import NAME, Sessions
from tokenmill.version import __version__

__all__ = ["models", "sessions", "status", "tokens"]

T = TypeVar("T")
SESSION = (400, 404, 429, 503)  # what the routes of sessions refuse with
SessionName = Annotated[str, Path(json_schema_extra={"pattern": f"^{NAME.pattern}$"}, examples=["tale"])]


def tokens(service: Service) -> APIRouter:
    """Text to tokens, and back."""
    routes, engine = APIRouter(route_class=JsonRoute), service.engine

    @routes.post("/tokenize", response_model=None, responses=answers(TokensAnswer, 400, 404, 408))
    async def tokenize(body: TokenizeBody) -> dict[str, Any]:
        """Token ids of a prompt or of a conversation, with the model's limit."""
        service.check(body)
        ids = await asyncio.to_thread(_encode, engine, body)
        spelled = [_decode(engine, [token]) for token in ids]
        return {"count": len(ids), "max_model_len": engine.config.max_length, "tokens": ids, "token_strs": spelled}

    @routes.post("/detokenize", response_model=None, responses=answers(TextAnswer, 400, 404, 408))
    async def detokenize(body: DetokenizeBody) -> dict[str, Any]:
        """The text of token ids."""
        service.check(body)
        ids = engine.encode(body.tokens) if body.tokens else []
        return {"prompt": await asyncio.to_thread(_decode, engine, ids)}

    @routes.get("/tokenizer_info", response_model=None, responses=answers(TokenizerAnswer))
    async def tokenizer_info() -> dict[str, Any]:
        """Names of special tokens and the chat template, as tools want them that tokenize through the server."""
        tokenizer = engine.tokenizer
        names = tokenizer.special_texts if tokenizer is not None else {}
        template = tokenizer.chat_template if tokenizer is not None else None
        return {**names, "chat_template": template, "model_max_length": engine.config.max_length}

    return routes


def _encode(engine: Engine, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give a prompt or messages, one of the two", "prompt")
    if body.messages is not None:
        return engine.chat_prompt(body.messages)
    return engine.encode(body.prompt, body.add_special_tokens) if body.prompt else []


def _decode(engine: Engine, ids: list[int]) -> str:
    if engine.tokenizer is None:
        raise ApiError(400, "this model has no tokenizer")
    return engine.tokenizer.decode(ids, skip_special=False)


def sessions(service: Service) -> APIRouter:
    """Texts that are kept by name."""
    routes = APIRouter(route_class=JsonRoute, prefix="/v1/sessions")

    async def kept(do: Callable[[Sessions, bytes], T], request: Request) -> T:
        service.check_ready()
        if (held := service.sessions) is None:
            raise ApiError(404, "this server keeps no sessions", code="no_sessions")
        return await service.driver.call(lambda: do(held, tenant_of(request)))

    @routes.post("/{name}/save", response_model=None, responses=answers(SavedAnswer, *SESSION, 408, 507))
    async def save(name: SessionName, body: SessionBody, request: Request) -> dict[str, Any]:
        """Keep a prompt or a conversation, with its rows."""
        service.check(body)
        ids = await asyncio.to_thread(_encode, service.engine, body)
        return await kept(lambda held, tenant: held.save(tenant, name, ids), request)

    @routes.post("/{name}/restore", response_model=None, responses=answers(RestoredAnswer, *SESSION, 409))
    async def restore(name: SessionName, request: Request) -> dict[str, Any]:
        """Load what was saved; requests that begin with it find its rows."""
        return await kept(lambda held, tenant: held.restore(tenant, name), request)

    @routes.post("/{name}/erase", response_model=None, responses=answers(ErasedAnswer, *SESSION))
    async def erase(name: SessionName, request: Request) -> dict[str, Any]:
        """Forget it."""
        return await kept(lambda held, tenant: held.erase(tenant, name), request)

    return routes


def models(service: Service) -> APIRouter:
    """The one model that is served."""
    routes = APIRouter()
    card = {
        "id": service.options.name,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "tokenmill",
        "max_model_len": service.engine.config.max_length,
    }

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


def status(service: Service) -> APIRouter:
    """How the server is."""
    routes = APIRouter()

    @routes.get("/health", response_model=None, responses=answers(StatusAnswer, 503))
    async def health() -> dict[str, str]:
        """Whether the engine lives. It does until its last request has ended."""
        if service.driver.has_failed and service.driver.error is not None:
            raise service.driver.error
        if service.driver.is_hung:
            raise EngineDied("the engine hangs: a step takes much longer than any before it")
        return {"status": "ok"}

    @routes.get("/ready", response_model=None, responses=answers(StatusAnswer, 503))
    async def ready() -> dict[str, str]:
        """Whether new requests are taken."""
        service.check_ready()
        return {"status": "ok"}

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures for Prometheus."""
        return Response(service.driver.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @routes.get("/version", response_model=None, responses=answers(VersionAnswer))
    async def version() -> dict[str, str]:
        """Of tokenmill."""
        return {"version": __version__}

    return routes
