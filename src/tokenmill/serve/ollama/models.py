"""The routes of Ollama's API that tell about the model, and those that would change which models there are.

One model is served, for as long as the server runs: what would fetch, make or delete another is refused by the command
that does it. A pull of the served model succeeds, since clients pull before they chat.
"""

from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from tokenmill.serve.facts.document import answers
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.http.json_lines import to_line
from tokenmill.serve.loop.service import Service
from tokenmill.serve.loop.work import LINES
from tokenmill.serve.ollama.answer_schema import (
    OllamaError,
    OllamaPsAnswer,
    OllamaShowAnswer,
    OllamaStatus,
    OllamaTagsAnswer,
    OllamaVersionAnswer,
)
from tokenmill.serve.ollama.body import OllamaCopyBody, OllamaEmbedBody, OllamaModelBody
from tokenmill.serve.ollama.facts import ModelFacts
from tokenmill.serve.ollama.names import VERSION, check_served, tagged
from tokenmill.serve.ollama.program_route import ProgramRoute
from tokenmill.value_reader import brief
from tokenmill.version import __version__

Json = dict[str, Any]
PULLED = ({"status": "pulling manifest"}, {"status": "success"})
MAX_NAME = 100  # characters of a name that are worth giving back
NO_NAME = "model is required"


def ollama_models(service: Service) -> APIRouter:
    """The routes."""
    routes, facts = APIRouter(route_class=ProgramRoute), ModelFacts(service)
    _add_facts(routes, facts)
    _add_changes(routes, facts)

    @routes.post("/api/embed", responses=answers(None, 400, 404, 408, error=OllamaError))
    @routes.post("/api/embeddings", responses=answers(None, 400, 404, 408, error=OllamaError))
    async def embed(body: OllamaEmbedBody) -> Response:
        """Refused: there are no embeddings."""
        check_served(body.model, facts.served)
        raise ApiError(400, f'"{body.model}" does not support embeddings: tokenmill computes none')

    return routes


def _add_facts(routes: APIRouter, facts: ModelFacts) -> None:
    @routes.get("/api/tags", response_model=None, responses=answers(OllamaTagsAnswer, 400, error=OllamaError))
    async def tags() -> Json:
        """The model that is served."""
        return {"models": [facts.listed]}

    @routes.get("/api/ps", response_model=None, responses=answers(OllamaPsAnswer, 400, error=OllamaError))
    async def running() -> Json:
        """The model that is loaded, which is the same."""
        return {"models": [facts.running]}

    @routes.get("/api/version", response_model=None, responses=answers(OllamaVersionAnswer, 400, error=OllamaError))
    async def version() -> Json:
        """The version of Ollama's API that is followed, since clients refuse an older one, and tokenmill's own."""
        return {"version": VERSION, "tokenmill": __version__}

    @routes.post(
        "/api/show", response_model=None, responses=answers(OllamaShowAnswer, 400, 404, 408, error=OllamaError)
    )
    async def show(body: OllamaModelBody) -> Json:
        """What the model is and can do."""
        _check_named(body, facts)
        return facts.shown


def _add_changes(routes: APIRouter, facts: ModelFacts) -> None:
    refused = answers(OllamaStatus, 400, 404, 408, error=OllamaError)

    @routes.post("/api/pull", responses=answers(OllamaStatus, 400, 404, 408, lines=True, error=OllamaError))
    async def pull(body: OllamaModelBody) -> Response:
        """Done, for the model that is served."""
        if body.asked and tagged(body.asked).casefold() != tagged(facts.served).casefold():
            name = body.asked[:MAX_NAME]
            message = (
                f"model {brief(name)} is not served here: run `tokenmill pull {name}` and `tokenmill serve {name}`"
            )
            raise ApiError(400, message, "model")
        _check_named(body, facts)
        return _lines(PULLED) if body.stream else JSONResponse(PULLED[-1])

    @routes.delete("/api/delete", responses=refused)
    async def delete(body: OllamaModelBody) -> Response:
        """Refused: a server deletes no models."""
        _check_named(body, facts)
        raise _not_here("a model is served and not deleted", f"tokenmill rm {body.asked}")

    @routes.post("/api/create", responses=refused)
    async def create(body: OllamaModelBody) -> Response:
        """Refused: Modelfiles are not read."""
        raise _not_here("no model is made of a Modelfile", "tokenmill quantize or tokenmill serve --chat-template FILE")

    @routes.post("/api/copy", responses=refused)
    async def copy(body: OllamaCopyBody) -> Response:
        """Refused: a model has one name."""
        raise _not_here("a model has the one name that it is served by", "tokenmill serve --served-model-name NAME")

    @routes.post("/api/push", responses=refused)
    async def push(body: OllamaModelBody) -> Response:
        """Refused: nothing is uploaded."""
        raise ApiError(400, "a model cannot be pushed: tokenmill uploads nothing")


def _check_named(body: OllamaModelBody, facts: ModelFacts) -> None:
    """ApiError where a body names no model, or another than the one that is served."""
    if not body.asked:
        raise ApiError(400, NO_NAME, "model")
    check_served(body.asked, facts.served)


def _not_here(why: str, command: str) -> ApiError:
    return ApiError(400, f"this server does not do that, since {why}: use `{command}`")


def _lines(objects: Iterable[Json]) -> Response:
    return Response(b"".join(to_line(each) + b"\n" for each in objects), media_type=LINES)
