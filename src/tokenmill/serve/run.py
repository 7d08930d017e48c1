"""The server of one engine, and the socket at which it listens.

SIGTERM or Ctrl-C begins to drain: new requests get 503, what runs goes on for as long as the timeout allows and gets an
error then, and the process ends. A second one ends it now.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import ip_address

from tokenmill.engine.engine import Engine
from tokenmill.errors import ConfigError
from tokenmill.serve.draining import GRACE_S, DrainingServer
from tokenmill.serve.guard import Guard
from tokenmill.serve.options import Options
from tokenmill.serve.recording import recorded
from tokenmill.serve.served import Served
from tokenmill.serve.warm_up import use_engine, use_routes


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

    def at(self, taken: socket.socket) -> "Address":
        """The address with the port that a socket has: the system chooses one where it is 0."""
        return replace(self, port=taken.getsockname()[1])


def listen(address: Address) -> socket.socket:
    """A socket at an address; ConfigError if it cannot be had. Before the model is loaded, which may take minutes."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # asyncio sets TCP_NODELAY where the protocol is named: else each answer waits 40 ms for a client's acknowledgement
    taken = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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


class Server(DrainingServer):
    """An engine that is served at a socket, until a signal comes or `drain` is called. It is then closed."""

    def __init__(
        self, engine: Engine, taken: socket.socket, options: Options, tell: Callable[[str], None] | None = None
    ) -> None:
        """tell: writes a line for each request. tools: see Served."""
        self._engine, self._taken = engine, taken
        served = Served(engine, options, self._end)
        self._pace, self.driver, self.admission = served.pace, served.driver, served.admission
        self._service, self._app, self._batches = served.service, served.app, served.batches
        self.tools = served.tools
        super().__init__(Guard(recorded(self._app, options.record), options, is_loopback(taken)), options, tell)

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

    @property
    def num_open(self) -> int:
        """See DrainingServer."""
        return self.admission.num_open

    def refuse_new(self) -> None:
        """See DrainingServer."""
        self._service.is_draining = True
        if self._batches is not None:
            self._batches.begin_to_stop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server: connections are taken from here on."""
        await use_routes(self._app)
        await super().startup(sockets)

    def _end(self) -> None:
        self.should_exit = True
