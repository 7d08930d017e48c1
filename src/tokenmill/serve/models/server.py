"""The server of several models at a socket, until a signal comes: what runs ends, then all are unloaded."""

import asyncio
import socket
from collections.abc import Callable

from tokenmill.serve.http.access import recorded
from tokenmill.serve.http.address import is_loopback
from tokenmill.serve.http.draining import DrainingServer
from tokenmill.serve.http.guard import Guard
from tokenmill.serve.loop.driver import LOOKS_S
from tokenmill.serve.models.residents import Residents
from tokenmill.serve.models.router import SHOWN, Router
from tokenmill.serve.start.options import Options
from tokenmill.units import counted


class ModelsServer(DrainingServer):
    """Several models at a socket, until a signal comes or `drain` is called. options: of the server itself."""

    def __init__(
        self, residents: Residents, taken: socket.socket, options: Options, tell: Callable[[str], None] | None = None
    ) -> None:
        """Take a socket. tell: writes a line for each request."""
        self.residents, self._taken, self._router = residents, taken, Router(residents, options)
        self._work: asyncio.Task[None] | None = None
        super().__init__(Guard(recorded(self._router.app, options.record), options, is_loopback(taken)), options, tell)

    def serve_to_end(self) -> bool:
        """Serve; return whether no engine hung at the end."""
        try:
            self.run(sockets=[self._taken])
        finally:
            has_lived = self.residents.close(self.ends_now)
        return has_lived

    @property
    def num_open(self) -> int:
        return self._router.num_open

    def refuse_new(self) -> None:
        self.residents.refuse_new()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server: connections are taken from here on."""
        self._work = asyncio.create_task(self.residents.run())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._work is not None:
            self._work.cancel()
            while not self._work.done() and not self.ends_now:
                await asyncio.wait({self._work}, timeout=LOOKS_S)


def greeting(residents: Residents, url: str, room: str) -> str:
    """Say what is served where."""
    names = ", ".join(each.name for each in residents.all[:SHOWN])
    more = f" and {len(residents.all) - SHOWN} more" if len(residents.all) > SHOWN else ""
    return f"{counted(len(residents.all), 'model')} at {url}, in {room} of memory: {names}{more}; Ctrl-C ends"
