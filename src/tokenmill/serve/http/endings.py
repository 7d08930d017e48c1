"""The answers of requests that are still running when the server's time is over.

Each of them gets an error: a response of its own if nothing was sent yet, an event if it is a stream. So a stream ends
with a finish or with an error, and no client takes a broken connection for the end of a text.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.http.refusals import event_of, respond
from tokenmill.serve.loop.work import EVENTS, LINES

ANSWER_ID = "tokenmill.answer"
"""The key, in the state of a request's scope, of the id of a stream's answer, which its last event needs."""
STREAMS = (EVENTS.encode(), LINES.encode())


class Endings:
    """Around the application. What is still being answered at the time that `end_at` sets is broken off then."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[asyncio.Timeout] = set()
        self._ends_s: float | None = None

    def end_at(self, ends_s: float) -> None:
        """Set the time, or an earlier one, by the event loop's clock, in which it is called."""
        if self._ends_s is None or ends_s < self._ends_s:
            self._ends_s = ends_s
            for limit in self._open:
                if not limit.expired():
                    limit.reschedule(ends_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        state = scope.setdefault("state", {})
        answer, limit = _Answer(send), asyncio.timeout_at(self._ends_s)
        try:
            async with limit:
                self._open.add(limit)
                await self._app(scope, receive, answer.send)
        except TimeoutError:
            if not limit.expired():
                raise
            await answer.break_off(scope, receive, {"id": state[ANSWER_ID]} if ANSWER_ID in state else {})
        finally:
            self._open.discard(limit)


class _Answer:
    """Notes how much of an answer was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_begun = self._is_stream = self._is_over = False

    async def send(self, message: Message) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            kinds = [value for name, value in message["headers"] if name == b"content-type"]
            self._is_begun, self._is_stream = True, any(kind.startswith(STREAMS) for kind in kinds)
        elif not message.get("more_body"):
            self._is_over = True
        await self._send(message)

    async def break_off(self, scope: Scope, receive: Receive, begun: dict[str, str]) -> None:
        """Say that the server has ended, if it can still be said. begun: what is known of a stream's answer."""
        error = ApiError(503, "the server has shut down before this request had ended", code="shutting_down")
        if not self._is_begun:
            await respond(error, scope["path"])(scope, receive, self._send)
        elif self._is_stream and not self._is_over:
            await self._send({"type": "http.response.body", "body": event_of(error, scope["path"], begun)})
