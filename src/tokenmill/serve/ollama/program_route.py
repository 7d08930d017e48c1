"""The reading of bodies on the routes of Ollama's API, whose documents show curl without a Content-Type."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from tokenmill.serve.loop.service import JsonRoute

OF_PAGES = ("origin", "sec-fetch-site")  # headers that browsers send, and no page can leave out


class ProgramRoute(JsonRoute):
    """A route whose body need not say that it is JSON, unless a web page has sent it."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """See APIRoute."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if not any(name in request.headers for name in OF_PAGES):
                kept = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
                scope = {**request.scope, "headers": [*kept, (b"content-type", b"application/json")]}
                request = Request(scope, request.receive)
            return await handler(request)

        return handle
