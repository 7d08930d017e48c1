"""The page at `/`: `page.html` with a field for each setting, its files in `static/`, and their headers.

Its files are static, but for the fields of settings. It may load and ask nothing but this server, and run no script but
its own, whatever a model writes.
"""

from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tokenmill.serve.facts.answer_schema import CacheAnswer
from tokenmill.serve.facts.cache_view import cache_view
from tokenmill.serve.facts.document import answers
from tokenmill.serve.loop.service import Service, tenant_of
from tokenmill.settings.field import settings_of
from tokenmill.settings.recommended import OPENAI, Recommended, in_force, say_origins
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams

RUNNING = "Ollama is running"  # what its clients ask for at /, and browsers never do
VARY = {"Vary": "Accept"}
FILES = Path(__file__).with_name("static")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
)
FIELD = '<label>{label} <input id="set-{name}" type="number" step="any" placeholder="{empty}"></label>'
ORIGINS = '<p id="set-origins" class="wide quiet">{text}</p>'
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

    html = _index(service.engine.core.inputs.defaults)

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


def _index(recommended: Recommended) -> str:
    """The page, with a field for each setting that is shown there. settings.mjs sends what stands in them.

    An empty field shows the value that is in force, and a line below the fields says where such values come from.
    """
    values = in_force(recommended, OPENAI)
    shown = [(told.page, name) for name, told in settings_of(SamplingParams).items() if told.page]
    shown.sort(key=lambda each: each[0].place)
    rows = [
        FIELD.format(
            label=page.label, name=HTTP_FIELDS[name], empty=values[name].value if name in values else page.empty
        )
        for page, name in shown
    ]
    rows.append(ORIGINS.format(text=escape(f"Where a field is empty: {say_origins(values)}")))
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    return template.replace("<!-- settings -->", "\n      ".join(rows))


class _Files(StaticFiles):
    """Files with the page's headers."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """See StaticFiles."""
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response
