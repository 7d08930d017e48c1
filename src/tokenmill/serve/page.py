"""The page at `/`: `page.html` with a field for each setting, its files in `static/`, and their headers.

Its files are static, but for the fields of settings. It may load and ask nothing but this server, and run no script but
its own, whatever a model writes.
"""

from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tokenmill.serve.answer_schema import CacheAnswer
from tokenmill.serve.cache_view import cache_view
from tokenmill.serve.document import answers
from tokenmill.serve.service import Service, tenant_of
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams

RUNNING = "Ollama is running"  # what its clients ask for at /, and browsers never do
VARY = {"Vary": "Accept"}
FILES = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
FIELD = '<label>{label} <input id="set-{name}" type="number" step="any" placeholder="{empty}"></label>'
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

    html = _index()

    @routes.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(html, headers=HEADERS | VARY)
        return PlainTextResponse(RUNNING, headers=VARY)

    @routes.get("/v1/cache", response_model=None, responses=answers(CacheAnswer, 503))
    async def cache(request: Request) -> dict[str, Any]:
        """The state of each block of the cache, and who holds blocks."""
        service.check_ready()
        driver, tenant = service.driver, tenant_of(request)
        return await driver.call(lambda: cache_view(driver.core.scheduler, driver.answers, tenant))

    routes.mount("/page", _Files(directory=FILES), name="page")
    return routes


def _index() -> str:
    """The page, with a field for each setting that is shown there. settings.mjs sends what stands in them."""
    shown = [(told.page, HTTP_FIELDS[name]) for name, told in settings_of(SamplingParams).items() if told.page]
    shown.sort(key=lambda each: each[0].place)
    rows = [FIELD.format(label=page.label, name=name, empty=page.empty) for page, name in shown]
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return template.replace("<!-- settings -->", "\n      ".join(rows))


class _Files(StaticFiles):
    """Files with the page's headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """See StaticFiles."""
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
