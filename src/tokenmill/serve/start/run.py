"""The server of one engine.

SIGTERM or Ctrl-C begins to drain: new requests get 503, what runs goes on for as long as the timeout allows and gets an
error then, and the process ends. A second one ends it now.
"""

import socket
from collections.abc import Callable

from tokenmill.engine.engine import Engine
from tokenmill.serve.http.address import is_loopback
from tokenmill.serve.http.draining import GRACE_S, DrainingServer
from tokenmill.serve.http.guard import Guard
from tokenmill.serve.http.recording import recorded
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.served import Served
from tokenmill.serve.start.warm_up import use_engine, use_routes


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
