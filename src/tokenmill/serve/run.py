"""The process: sockets, signals, and an end at which streams are finished first.

uvicorn with h11 speaks HTTP. SIGTERM or Ctrl-C begins to drain: new requests get 503, what runs goes on for as long as
the timeout allows and gets an error then, and the process ends. A second one ends it now.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from types import FrameType

import uvicorn

from tokenmill.engine.engine import Engine
from tokenmill.errors import ConfigError
from tokenmill.serve.access import AccessLog
from tokenmill.serve.connection import HttpProtocol
from tokenmill.serve.endings import Endings
from tokenmill.serve.guard import Guard
from tokenmill.serve.options import Options
from tokenmill.serve.served import Served
from tokenmill.serve.warm_up import use_engine, use_routes

GRACE_S = 2  # for what is not waited for: requests that compute nothing, connections, the step that is being made


@dataclass(frozen=True)
class Address:
    """The address at which the server listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    scheme: str = "http"

    @property
    def url(self) -> str:
        """The address as people and clients write it."""
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def listen(address: Address) -> socket.socket:
    """A socket at an address; ConfigError if it cannot be had. Before the model is loaded, which may take minutes."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    taken = socket.socket(family, socket.SOCK_STREAM)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((address.host, address.port))
        taken.listen(2048)
    except OSError as error:
        taken.close()
        why = error.strerror or str(error)
        raise ConfigError("port", address.port, f"one that is free at {address.host} ({why})", "--port") from None
    return taken


def is_loopback(taken: socket.socket) -> bool:
    """Whether only this machine can connect to a socket."""
    return ip_address(taken.getsockname()[0]).is_loopback


class Server(uvicorn.Server):
    """An engine that is served at a socket, until a signal comes or `drain` is called. It is then closed."""

    def __init__(
        self, engine: Engine, taken: socket.socket, options: Options, tell: Callable[[str], None] | None = None
    ) -> None:
        """tell: writes a line for each request."""
        self._engine, self._taken, self._options = engine, taken, options
        served = Served(engine, options, self._end)
        self._pace, self.driver, self.admission = served.pace, served.driver, served.admission
        self._service, self._app, self._batches = served.service, served.app, served.batches
        self._endings = Endings(Guard(self._app, options, is_loopback(taken)))
        self._ends_s: float | None = None  # by time.monotonic, which is the event loop's clock too
        super().__init__(uvicorn_config(AccessLog(self._endings, tell, options.log_format), options))

    def serve_to_end(self) -> bool:
        """Serve; whether the engine lived to the end."""
        use_engine(self._engine)  # before anything measures steps or counts tokens
        with self._engine.core.observed_by(self._pace):
            self.driver.start()
            if self._batches is not None:
                self._batches.start()
            try:
                self.run(sockets=[self._taken])
            finally:
                if self._batches is not None:
                    self._batches.stop()
                if has_stopped := self.driver.stop(GRACE_S):
                    self._engine.close()  # which waits for the end of a step, and one that hangs has none
        return has_stopped and not self.driver.has_failed

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins to drain, the second ends."""
        self.drain(0.0 if self._service.is_draining else None)

    def drain(self, timeout_s: float | None = None) -> None:
        """Take no more requests, and end when those that run have ended, at the latest after the timeout.

        It may be called from any thread.
        """
        self._service.is_draining = True
        if self._batches is not None:
            self._batches.begin_to_stop()
        self._ends_s = time.monotonic() + (self._options.drain_s if timeout_s is None else timeout_s)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server: connections are taken from here on."""
        await use_routes(self._app)
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn.Server: called ten times a second."""
        if self._ends_s is not None:
            self._endings.end_at(self._ends_s)
            if not self.admission.num_open or time.monotonic() >= self._ends_s:
                self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server."""
        self._endings.end_at(time.monotonic() + GRACE_S)
        await super().shutdown(sockets)

    def _end(self) -> None:
        self.should_exit = True


def uvicorn_config(app: AccessLog, options: Options) -> uvicorn.Config:
    """The settings of uvicorn. Its event loop is asyncio's own, also where uvloop is installed: HttpProtocol looks at
    transports as asyncio has them.
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
