"""The application: all routes, and errors in the form of each protocol."""

import asyncio
from http import HTTPMethod, HTTPStatus

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from tokenmill.errors import TokenmillError
from tokenmill.serve.facts.document import ALWAYS, answers, set_document
from tokenmill.serve.facts.models import models
from tokenmill.serve.facts.page import page
from tokenmill.serve.facts.reference import add_reference
from tokenmill.serve.facts.status import status
from tokenmill.serve.facts.tokens import tokens
from tokenmill.serve.http.errors import ApiError, EngineDied
from tokenmill.serve.http.refusals import respond
from tokenmill.serve.loop.service import Service
from tokenmill.serve.messages.routes import messages
from tokenmill.serve.ollama.models import ollama_models
from tokenmill.serve.ollama.routes import ollama
from tokenmill.serve.openai.routes import generation
from tokenmill.serve.responses.routes import responses
from tokenmill.serve.sessions.batch_routes import batches
from tokenmill.serve.sessions.file_routes import files
from tokenmill.serve.sessions.routes import sessions
from tokenmill.version import __version__


def make_app(service: Service) -> FastAPI:
    """The application for one engine."""
    title, always = "tokenmill", answers(None, *ALWAYS)
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, openapi_url=None, responses=always)
    for kind in (ApiError, TokenmillError, RequestValidationError, HTTPException, EngineDied, Exception):
        app.add_exception_handler(kind, _refuse)
    protocols = (generation, messages, responses, ollama, ollama_models)
    for routes in (*protocols, tokens, sessions, files, batches, models, status):
        app.include_router(routes(service))
    app.include_router(page(service))
    set_document(app, service.options)
    add_reference(app)

    @app.get("/openapi.json", include_in_schema=False)
    async def document() -> Response:
        return await asyncio.to_thread(lambda: JSONResponse(app.openapi()))

    return app


async def _refuse(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        error = HTTPException(error.status_code, headers={"Allow": ", ".join(_methods_at(request))})
    return respond(error, request.scope["path"])


def _methods_at(request: Request) -> list[str]:
    """Every method that a path has: starlette's own 405 names those of the first route with the path."""
    asked = [dict(request.scope) | {"method": method.value} for method in HTTPMethod]
    routes = request.app.routes
    return [each["method"] for each in asked if any(route.matches(each)[0] is Match.FULL for route in routes)]
