"""The gate at a socket: what `tokenmill serve --replicas` runs in its own process."""

import socket
from collections.abc import Callable

from tokenmill.scale.fleet import Fleet
from tokenmill.scale.gate import Gate
from tokenmill.serve.http.access import recorded
from tokenmill.serve.http.address import is_loopback
from tokenmill.serve.http.draining import DrainingServer
from tokenmill.serve.http.guard import Guard
from tokenmill.serve.start.options import Options


class GateServer(DrainingServer):
    """The gate at a socket, until a signal comes or `drain` is called."""

    def __init__(
        self, fleet: Fleet, taken: socket.socket, options: Options, tell: Callable[[str], None] | None = None
    ) -> None:
        """tell: writes a line for each request."""
        self._fleet, self._taken, self._gate = fleet, taken, Gate(fleet)
        super().__init__(Guard(recorded(self._gate, options.record), options, is_loopback(taken)), options, tell)

    def serve_to_end(self) -> None:
        """Serve."""
        self.run(sockets=[self._taken])

    @property
    def num_open(self) -> int:
        return self._gate.num_open

    def refuse_new(self) -> None:
        self._gate.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server. The router begins with the first call, and only then knows the replicas."""
        await self._fleet.start()
        await super().startup(sockets)
