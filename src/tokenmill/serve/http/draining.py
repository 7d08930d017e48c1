"""A server at a socket that ends in order: SIGTERM or Ctrl-C lets what runs end, a second one does not.

What is still running when its time is over gets an error: a response of its own if nothing was sent yet, an event if it
is a stream. So a stream ends with a finish or with an error, and no client takes a broken connection for the end of a
text. After a second signal nothing else is waited for, a step or a load neither.
"""

import asyncio
import signal
import socket
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokenmill.serve.http.access import AccessLog
from tokenmill.serve.http.connection import HttpProtocol
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.http.streams import ANSWER_ID, EVENTS, LINES
from tokenmill.serve.protocols import refusals_at
from tokenmill.serve.start.options import Options

STREAMS = (EVENTS.encode(), LINES.encode())
GRACE_S = 2  # for what is not waited for: requests that compute nothing, connections, the step that is being made


class DrainingServer(uvicorn.Server):
    """uvicorn with h11. To drain, it takes no more requests, and it ends when all that run have ended.

    What still runs after `options.drain_s` gets an error then.
    """

    def __init__(self, app: ASGIApp, options: Options, tell: Callable[[str], None] | None = None) -> None:
        """Serve an application. tell: writes a line for each request."""
        self._endings, self._options = Endings(app), options
        self._ends_s: float | None = None  # by time.monotonic, which is the event loop's clock too
        self._ended_by: int | None = None
        super().__init__(_config(AccessLog(self._endings, tell, options.log_format), options))

    @property
    @abstractmethod
    def num_open(self) -> int:
        """Requests, or texts, that the end waits for."""

    @abstractmethod
    def refuse_new(self) -> None:
        """Take no more requests. It may be called from any thread."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at the second."""
        if self._ends_s is not None:
            self._ended_by = sig
        self.drain(None if self._ends_s is None else 0.0)

    @property
    def ends_now(self) -> bool:
        """Tell whether a second signal has come."""
        return self._ended_by is not None

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end. SystemExit with the exit code of a second signal, if one came."""
        try:
            super().run(sockets)
        except KeyboardInterrupt:  # it came after uvicorn had given the signals back
            self._ended_by = signal.SIGINT
        if self._ended_by is not None:
            raise SystemExit(128 + self._ended_by)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server."""
        try:
            await super().serve(sockets)
        finally:
            if self.ends_now:  # asyncio waits for the threads of its executor
                asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())

    def drain(self, timeout_s: float | None = None) -> None:
        """Take no more requests, and end when all that run have ended, at the latest after the timeout.

        It may be called from any thread, and again, which does not put the end off.
        """
        self.refuse_new()
        ends_s = time.monotonic() + (self._options.drain_s if timeout_s is None else timeout_s)
        self._ends_s = ends_s if self._ends_s is None else min(ends_s, self._ends_s)

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn.Server: called ten times a second."""
        if self._ends_s is not None:
            self._endings.end_at(self._ends_s)
            if not self.num_open or time.monotonic() >= self._ends_s:
                self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._endings.end_at(time.monotonic() + GRACE_S)
        await super().shutdown(sockets)


def _config(app: AccessLog, options: Options) -> uvicorn.Config:
    """Make the settings of uvicorn. Its event loop is asyncio's own, also where uvloop is installed, as it is with Ray:
    the server is the same whatever else is there.
    """
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=options.keep_alive_s,
        timeout_graceful_shutdown=GRACE_S + 1,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key_file,
    )


class Endings:
    """The ends of answers, around the application. At the time that `end_at` sets, open answers are broken off."""

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
    """An answer, and how much of it was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._is_begun = self._is_stream = self._is_over = False

    async def send(self, message: Message) -> None:
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
            await refusals_at(scope["path"]).respond(error)(scope, receive, self._send)
        elif self._is_stream and not self._is_over:
            await self._send({"type": "http.response.body", "body": refusals_at(scope["path"]).event_of(error, begun)})
