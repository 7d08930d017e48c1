"""The application of a server with several models: a request is handed to the server of the model that it names.

What tells of the models loads none of them. A request that names no model is for the first one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as List
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pydantic_core
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route as Endpoint
from starlette.types import Message, Receive, Scope, Send

from tokenmill.errors import TokenmillError
from tokenmill.serve.facts import document, page
from tokenmill.serve.facts.adapters import LoadBody, adapter_path
from tokenmill.serve.facts.described import Described
from tokenmill.serve.facts.status import ANTHROPIC, card, listed
from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.loop.answer import unless_disconnected
from tokenmill.serve.loop.metrics import merged
from tokenmill.serve.loop.service import Call, read_body, read_json, tenant_of
from tokenmill.serve.messages.parse import FOREIGN
from tokenmill.serve.models.hosted import LOADED, LOADING, UNLOADED, ComingAdapter, Hosted, died, plain
from tokenmill.serve.models.residents import Residents
from tokenmill.serve.ollama.names import keep_alive_s
from tokenmill.serve.ollama.parse import unloaded
from tokenmill.serve.ollama.routes import ModelFacts, OllamaModelBody, pulled, tags_of, version
from tokenmill.serve.protocols import MESSAGES, OLLAMA, OPENAI, Protocol, Route
from tokenmill.serve.request.fields import nearest
from tokenmill.serve.routes import ROUTES
from tokenmill.serve.sessions.sessions import session_path
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import handlers_of_errors
from tokenmill.value_reader import brief
from tokenmill.version import __version__
from tokenmill.weights.adapters.named import weights_bytes

log = logging.getLogger(__name__)

NO_VIEW: Json = {"block_size": 0, "blocks": "", "running": 0, "waiting": 0, "texts": []}
NONE_HELD = {"texts": 0, "blocks": 0}
SHOWN = 20  # names in a refusal
KEPT = ("/v1/files", "/v1/batches")  # what one engine alone keeps
SESSIONS, LOADS_ADAPTER = "/v1/sessions/", "/v1/load_lora_adapter"

Do = Callable[[Request], Awaitable[Any]]


class Router:
    """The routes of all models. options: of the server, whose name is the first model's."""

    def __init__(self, residents: Residents, options: Options) -> None:
        self._residents, self._options = residents, options
        own: dict[str, Do] = {
            "/v1/models": self._models,
            "/v1/models/": self._models,
            "/v1/models/{name:path}": self._model,
            "/api/tags": self._tags,
            "/api/ps": self._running,
            "/api/show": self._show,
            "/api/pull": self._pull,
            "/api/version": lambda request: version(None),  # type: ignore[arg-type]
            "/health": self._health,
            "/ping": self._health,
            "/ready": self._ready,
            "/load": self._load,
            "/server_info": self._server_info,
            "/metrics": self._metrics,
            "/version": self._version,
            "/v1/cache": self._cache,
            "/": self._page,
            "/page/{name:path}": self._page_file,
            "/openapi.json": self._openapi,
            "/docs": self._reference,
            "/redoc": self._reference,
        }
        lines = [
            Endpoint(route.path, _answering(own[route.path]) if route.path in own else _Handed(self, route),
                     methods=[route.method])
            for route in ROUTES
        ]  # fmt: skip
        self.app = Starlette(routes=lines, exception_handlers=handlers_of_errors())

    @property
    def num_open(self) -> int:
        """Requests that use a model or wait for one."""
        return self._residents.num_waiting + sum(each.users for each in self._all)

    async def hand(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand a request to the model that it names, once that is loaded."""
        request = Request(scope, receive)
        if route.path.startswith(KEPT):
            raise ApiError(404, "a server of several models keeps no files and batches", code="no_batches")
        given = await read_json(request, route) if route.body is not None else None
        named = given if isinstance(given, dict) else request.query_params
        if route.path.startswith(SESSIONS) and route.body is None and "model" not in named:
            hosted = await asyncio.to_thread(self._of_session, request)
        else:
            hosted = self._find(named.get("model"), route.protocol)
        adapter = await self._coming_adapter(request, route, hosted) if route.path == LOADS_ADAPTER else None
        keep = keep_alive_s(named.get("keep_alive")) if route.protocol is OLLAMA else None
        is_away = not hosted.is_usable and hosted.state != LOADING
        if keep == (0.0,) and is_away and (told := unloaded(route, given)) is not None:
            await JSONResponse(told)(scope, receive, send)
            return
        async with AsyncExitStack() as stack:
            using = self._residents.using(hosted, tenant_of(request), adapter)
            served = await unless_disconnected(request, stack.enter_async_context(using))
            if route.body is None:
                await served.app(scope, receive, send)
                return
            body = self._with_own_name(await request.body(), given, hosted, route)
            await served.app(scope, _again(body, receive), _keeping(hosted, keep, send))

    async def _coming_adapter(self, request: Request, route: Route, hosted: Hosted) -> ComingAdapter:
        """Read which adapter a request loads. ApiError for one that is refused whatever room there is: so no model goes
        for it.
        """
        body = await read_body(request, route, LoadBody)
        self._residents.check_adapter(body.lora_name, hosted)
        loaded = () if hosted.served is None else hosted.served.engine.adapters
        path = adapter_path(body, hosted.setup.options, loaded)
        return ComingAdapter(body.lora_name, weights_bytes(path))

    def _with_own_name(self, body: bytes, given: Any, hosted: Hosted, route: Route) -> bytes:
        """Return a body that names the model, or its adapter, as it is spelled. Ollama's routes give the name back."""
        name = given.get("model") if isinstance(given, dict) else None
        if not isinstance(name, str) or name in hosted.names or route.protocol is OLLAMA:
            return body
        own = next((each for each in hosted.names if plain(each) == plain(name)), None)
        return body if own is None else pydantic_core.to_json({**given, "model": own})

    @property
    def _all(self) -> List[Hosted]:
        return self._residents.all

    @property
    def _names(self) -> list[str]:
        return [name for each in self._all for name in each.names]

    def _find(self, name: Any, protocol: Protocol = OPENAI) -> Hosted:
        """Find the model that a name means: its own or an adapter's, as it is spelled or else in letters of either
        case. ApiError 404 for another, with the nearest.
        """
        if not isinstance(name, str) or not name:
            return self._all[0]
        own = [(each.name, each) for each in self._all]
        known = [*own, *((adapter, each) for each in self._all for adapter in each.adapter_names)]
        for is_it in (name.__eq__, lambda other: plain(other) == plain(name)):
            if (found := next((each for other, each in known if is_it(other)), None)) is not None:
                return found
        if protocol is MESSAGES and name.startswith(FOREIGN):
            return self._all[0]  # as Anthropic's clients name models, whatever is served
        names = self._names
        there, meant = " and ".join(map(repr, names[:SHOWN])), nearest(name, names)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        hint = f"; is {meant!r} meant?" if meant is not None else ""
        if protocol is OLLAMA:
            raise ApiError(404, f"model {brief(name)} not found: there is {there}{more}{hint}")
        message = f"the model {brief(name)} is not served here; there is {there}{more}{hint}"
        raise ApiError(404, message, "model", "model_not_found")

    def _of_session(self, request: Request) -> Hosted:
        """Find the model for which a session was saved; the first one where there is none of that name."""
        tenant, name = tenant_of(request), request.path_params["name"]
        folders = [(each, each.setup.options.session_dir) for each in self._all]
        places = [(each, session_path(folder, tenant, name)) for each, folder in folders if folder is not None]
        return next((each for each, path in places if path.exists()), self._all[0])

    async def _described(self) -> list[Described]:
        """Describe all models but those whose files are not there any more."""
        found = await asyncio.gather(*map(_described_or_none, self._all))
        return [each for each in found if each is not None]

    async def _one(self, hosted: Hosted) -> Described:
        """Describe a model. ApiError 503 where its files are not there any more."""
        if (described := await _described_or_none(hosted)) is None:
            raise ApiError(503, f"the files of the model {hosted.name!r} cannot be read", "model", "model_not_loaded")
        return described

    # ---- what tells of the models

    async def _models(self, request: Request) -> Json:
        return listed(await self._described(), request)

    async def _model(self, request: Request) -> Json:
        is_other = ANTHROPIC in request.headers
        hosted = self._find(name := request.path_params["name"], MESSAGES if is_other else OPENAI)
        described = await self._one(hosted)
        return card(described, name if name in described.adapters else None, request)

    async def _tags(self, request: Request) -> Json:
        return {"models": [entry for each in await self._described() for entry in tags_of(each)]}

    async def _running(self, request: Request) -> Json:
        loaded = [each for each in self._all if each.state == LOADED]
        now, now_s = datetime.now(UTC), self._residents.clock()
        ends = [None if each.keep_alive_s is None else each.expires_s or now_s + each.keep_alive_s for each in loaded]
        times = [None if end is None else now + timedelta(seconds=end - now_s) for end in ends]
        described = [await each.describe() for each in loaded]
        return {"models": [ModelFacts(each).running(at) for each, at in zip(described, times, strict=True)]}

    async def _show(self, request: Request) -> Json:
        name, _ = await self._asked(request)
        described = await self._one(self._find(name, OLLAMA))
        return ModelFacts(described, name if name in described.adapters else None).shown

    async def _pull(self, request: Request) -> Json | Response:
        name, is_stream = await self._asked(request)
        self._find(name, OLLAMA)
        return pulled(is_stream)

    async def _asked(self, request: Request) -> tuple[str, bool]:
        """Read the name of a model that must be given, and whether a stream is asked for."""
        body = await read_body(request, _SHOW, OllamaModelBody)
        if not body.asked:
            raise ApiError(400, "model is required", "model")
        return body.asked, body.stream

    async def _health(self, request: Request) -> Json:
        if (error := died(self._all)) is not None:
            raise error
        return {"status": "ok"}

    async def _ready(self, request: Request) -> Json:
        if self._residents.is_draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        return {"status": "ok"}

    async def _load(self, request: Request) -> Json:
        return {"server_load": self.num_open}

    async def _server_info(self, request: Request) -> Json:
        models = [
            {
                "model": each.name,
                "state": each.state,
                "bytes": each.num_bytes,
                "users": each.users,
                "waiting": len(each.waiters),
                "loads": each.num_loads,
                "load_s": round(each.took_s, 3),
                "keep_alive_s": each.keep_alive_s,
            }
            for each in self._all
        ]
        memory = {"room_bytes": self._residents.room_bytes, "used_bytes": self._residents.used_bytes}
        return {"version": __version__, "models": models, "memory": memory}

    async def _metrics(self, request: Request) -> Response:
        found = [each.served.driver.metrics for each in self._all if each.served is not None]
        states = {each.name: (each.state != UNLOADED, each.num_loads) for each in self._all}
        return Response(merged(found, states, self._options.metrics_prefix), media_type=CONTENT_TYPE_LATEST)

    async def _version(self, request: Request) -> Json:
        return {"version": __version__}

    # ---- the page and the document

    async def _cache(self, request: Request) -> Json:
        """Tell of the cache of a model that is loaded; nothing is loaded for it."""
        hosted = self._find(request.query_params.get("model"))
        if not hosted.is_usable or hosted.served is None:
            return NO_VIEW | {"others": NONE_HELD, "sessions": NONE_HELD}
        return await page.cache(Call(hosted.served.service, request, _CACHE))

    async def _page(self, request: Request) -> Response:
        described = await self._one(self._all[0])
        return page.index_of(request, described.defaults)

    async def _page_file(self, request: Request) -> Response:
        return await page.file_of(request)

    async def _openapi(self, request: Request) -> Response:
        return await asyncio.to_thread(lambda names: JSONResponse(self._document(names)), self._names)

    async def _reference(self, request: Request) -> Response:
        html = await asyncio.to_thread(lambda names: document.reference_of(self._document(names)), self._names)
        return HTMLResponse(html, headers=page.HEADERS)

    def _document(self, names: List[str]) -> Json:
        return document.document_of(ROUTES, self._options, names)


_SHOW, _CACHE = (next(route for route in ROUTES if route.path == path) for path in ("/api/show", "/v1/cache"))


async def _described_or_none(hosted: Hosted) -> Described | None:
    try:
        return await hosted.describe()
    except (TokenmillError, OSError) as error:
        log.warning("%s cannot be described: %s", hosted.name, error)
        return None


class _Handed:
    """A route whose requests are handed to a model. It is ASGI, so that streams go through as they are."""

    def __init__(self, router: Router, route: Route) -> None:
        self._router, self._route = router, route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router.hand(self._route, scope, receive, send)


def _answering(do: Do) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        found = await do(request)
        return found if isinstance(found, Response) else JSONResponse(found)

    return answer


def _keeping(hosted: Hosted, keep: tuple[float | None] | None, send: Send) -> Send:
    """Set how long a model stays loaded, if a request says so, once it is answered and not refused."""

    async def sent(message: Message) -> None:
        if keep is not None and message["type"] == "http.response.start" and message["status"] < 400:
            (hosted.keep_alive_s,) = keep
        await send(message)

    return sent


def _again(body: bytes, receive: Receive) -> Receive:
    """Give a body again that was read, and then what comes."""
    is_given = False

    async def again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
