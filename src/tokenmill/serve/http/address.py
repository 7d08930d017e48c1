"""The address of a server, and the socket at which it listens. Nothing slow is imported, so that a port in use is
refused at once.
"""

import errno
import socket
from dataclasses import dataclass, replace
from ipaddress import ip_address

from tokenmill.errors import ConfigError


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
        """Return the address with the port that a socket has: the system chooses one where it is 0."""
        return replace(self, port=taken.getsockname()[1])


def listen(address: Address) -> socket.socket:
    """Open a socket; ConfigError if it cannot be had. Before the model is loaded, which may take minutes."""
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
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError("host", address.host, f"an address of this machine ({why})", "--host") from None
        if error.errno == errno.EACCES:
            raise ConfigError("port", address.port, f"one that this user may open ({why})", "--port") from None
        raise ConfigError("port", address.port, f"one that is free at {address.host} ({why})", "--port") from None
    return taken


def is_loopback(taken: socket.socket) -> bool:
    """Return whether only this machine can connect to a socket."""
    return ip_address(taken.getsockname()[0]).is_loopback
