"""The routes that say how the server is: health, metrics, version."""

from typing import Any

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from tokenmill.serve.facts.answer_schema import LoadAnswer, ServerAnswer, StatusAnswer, VersionAnswer
from tokenmill.serve.facts.document import answers
from tokenmill.serve.facts.server_facts import engine_facts, sampling_facts, server_facts
from tokenmill.serve.http.errors import EngineDied
from tokenmill.serve.loop.service import Service
from tokenmill.version import __version__


def status(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()
    loaded = service.engine.core.loaded
    facts = {
        "engine": engine_facts(loaded),
        "server": server_facts(service),
        "sampling": sampling_facts(loaded.generation_defaults),
    }

    @routes.get("/health", response_model=None, responses=answers(StatusAnswer, 503))
    async def health() -> dict[str, str]:
        """Whether the engine lives. It does until its last request has ended."""
        if service.driver.has_failed and service.driver.error is not None:
            raise service.driver.error
        if service.driver.is_hung:
            raise EngineDied("the engine hangs: a step takes much longer than any before it")
        return {"status": "ok"}

    @routes.get("/ping", response_model=None, responses=answers(StatusAnswer, 503))
    @routes.post("/ping", response_model=None, responses=answers(StatusAnswer, 503))
    async def ping() -> dict[str, str]:
        """The same as /health, under the name that SageMaker asks for."""
        return await health()

    @routes.get("/load", response_model=None, responses=answers(LoadAnswer))
    async def load() -> dict[str, int]:
        """The number of texts that run or wait, for a router that chooses among servers."""
        return {"server_load": service.admission.num_open}

    @routes.get("/server_info", response_model=None, responses=answers(ServerAnswer))
    async def server_info() -> dict[str, Any]:
        """The settings of the engine, the limits of the server, and how requests that name no sampling are sampled;
        without paths and keys.
        """
        return {"version": __version__, "model": service.options.name, **facts}

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
        """The version of tokenmill."""
        return {"version": __version__}

    return routes
