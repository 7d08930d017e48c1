"""The page at `/`, and what it shows of the cache.

Its files are static. It may load and ask nothing but this server, and run no script but its own, whatever a model
writes.
"""

from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tokenmill.serve.answer_schema import CacheAnswer
from tokenmill.serve.cache_view import cache_view
from tokenmill.serve.document import answers
from tokenmill.serve.service import Service, tenant_of

__all__ = ["page"]

FILES = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page(service: Service) -> APIRouter:
    """The routes."""
    routes = APIRouter()

    @routes.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(FILES / "index.html", headers=HEADERS)

    @routes.get("/v1/cache", response_model=None, responses=answers(CacheAnswer, 503))
    async def cache(request: Request) -> dict[str, Any]:
        """The state of each block of the cache, and who holds blocks."""
        service.check_ready()
        driver, tenant = service.driver, tenant_of(request)
        return await driver.call(lambda: cache_view(driver.core.scheduler, driver.answers, tenant))

    routes.mount("/page", _Files(directory=FILES), name="page")
    return routes


class _Files(StaticFiles):
    """Files with the page's headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """See StaticFiles."""
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
