"""A server at a socket that ends in order: SIGTERM or Ctrl-C lets what runs end, a second one does not."""

import socket
import time
from abc import abstractmethod
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from tokenmill.serve.http.access import AccessLog
from tokenmill.serve.http.connection import HttpProtocol
from tokenmill.serve.http.endings import Endings
from tokenmill.serve.start.options import Options

GRACE_S = 2  # for what is not waited for: requests that compute nothing, connections, the step that is being made


class DrainingServer(uvicorn.Server):
    """uvicorn with h11. To drain, it takes no more requests, and it ends when those that run have ended.

    What still runs after `options.drain_s` gets an error then.
    """

    def __init__(self, app: ASGIApp, options: Options, tell: Callable[[str], None] | None = None) -> None:
        """tell: writes a line for each request."""
        self._endings, self._options = Endings(app), options
        self._ends_s: float | None = None  # by time.monotonic, which is the event loop's clock too
        super().__init__(_config(AccessLog(self._endings, tell, options.log_format), options))

    @property
    @abstractmethod
    def num_open(self) -> int:
        """Requests, or texts, that the end waits for."""

    @abstractmethod
    def refuse_new(self) -> None:
        """Take no more requests. It may be called from any thread."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to drain, the second ends."""
        self.drain(None if self._ends_s is None else 0.0)

    def drain(self, timeout_s: float | None = None) -> None:
        """Take no more requests, and end when those that run have ended, at the latest after the timeout.

        It may be called from any thread.
        """
        self.refuse_new()
        self._ends_s = time.monotonic() + (self._options.drain_s if timeout_s is None else timeout_s)

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn.Server: called ten times a second."""
        if self._ends_s is not None:
            self._endings.end_at(self._ends_s)
            if not self.num_open or time.monotonic() >= self._ends_s:
                self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server."""
        self._endings.end_at(time.monotonic() + GRACE_S)
        await super().shutdown(sockets)


def _config(app: AccessLog, options: Options) -> uvicorn.Config:
    """The settings of uvicorn. Its event loop is asyncio's own, also where uvloop is installed, as it is with Ray: the
    server is the same whatever else is there.
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
