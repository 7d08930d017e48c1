"""The page at `/`: `page.html` with a field for each setting, its files in `static/` and their headers, and the view of
the cache that it shows.

Its files are static, but for the fields of settings. It may load and ask nothing but this server, and run no script but
its own, whatever a model writes.
"""

from collections.abc import Collection, Mapping
from html import escape
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Sequence
from tokenmill.serve.loop.service import Call
from tokenmill.settings.field import settings_of
from tokenmill.settings.recommended import OPENAI, Recommended, in_force, say_origins
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams

RUNNING = "Ollama is running"  # what its clients ask for at /, and browsers never do
VARY = {"Vary": "Accept"}
FILES = Path(__file__).with_name("static")
_FILES = StaticFiles(directory=FILES)
Json = dict[str, Any]
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


async def index(call: Call) -> Response:
    """Give the page to a browser."""
    return index_of(call.request, call.service.engine.core.inputs.defaults)


def index_of(request: Request, recommended: Recommended) -> Response:
    """Give the page to a browser, with these settings where it names none; else what Ollama's clients ask for."""
    if "text/html" in request.headers.get("accept", ""):
        return HTMLResponse(_index(recommended), headers=HEADERS | VARY)
    return PlainTextResponse(RUNNING, headers=VARY)


async def page_file(call: Call) -> Response:
    """Give a file of the page."""
    return await file_of(call.request)


async def file_of(request: Request) -> Response:
    """Give the file of the page that a path names."""
    response = await _FILES.get_response(request.path_params["name"], request.scope)
    response.headers.update(HEADERS)
    return response


async def cache(call: Call) -> Json:
    """Tell the state of each block of the cache, and who holds blocks."""
    call.service.check_ready()
    driver = call.service.driver
    return await driver.call(lambda: cache_view(driver.core.scheduler, driver.answers, call.tenant))


def cache_view(scheduler: Scheduler, answers: Mapping[int, str], client: bytes) -> Json:
    """Describe the cache. blocks: a letter for each, `f` free, `k` free and kept for prompts that begin alike, `u` in
    use, `s` shared.

    texts: the texts of the client, by the id of their answer. Of other texts, and of sessions, it says how many there
    are.
    """
    unfinished = [("running", each) for each in scheduler.running] + [("waiting", each) for each in scheduler.waiting]
    others = [each for _, each in unfinished if each.client != client]
    texts = [(state, each) for state, each in unfinished if each.client == client]
    return {
        "block_size": scheduler.allocator.block_size,
        "blocks": "".join(map(scheduler.allocator.state_of, range(scheduler.allocator.num_blocks))),
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
        "texts": [_describe(scheduler, state, each, answers.get(each.id)) for state, each in texts],
        "others": _counted(others),
        "sessions": _counted(scheduler.parked),
    }


def _counted(sequences: Collection[Sequence]) -> Json:
    return {"texts": len(sequences), "blocks": len({block for each in sequences for block in each.kept.blocks})}


def _describe(scheduler: Scheduler, state: str, sequence: Sequence, answer: str | None) -> Json:
    references = scheduler.allocator.references
    return {
        "id": answer,
        "state": state,
        "tokens": len(sequence.tokens),
        "prompt_tokens": sequence.num_prompt_tokens,
        "cached_tokens": sequence.num_cached_tokens,
        "blocks": len(sequence.kept.blocks),
        "shared": sum(references[block] > 1 for block in sequence.kept.blocks),
    }


def _index(recommended: Recommended) -> str:
    """Make the page, with a field for each setting that is shown there. settings.mjs sends what stands in them.

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
