"""Ports of this machine for servers that tests start, and at which nobody listens yet."""

import itertools
import os
import socket
from contextlib import suppress

PORTS = range(20_000, 32_000)
"""Below those that systems give by themselves, so that no connection and no server of another test gets one of them."""

_offsets = itertools.count(os.getpid() * 37)  # tests run in several processes, and each begins elsewhere


def unused_port():
    """A port at which nobody listens, and that was not given before."""
    for offset in itertools.islice(_offsets, len(PORTS)):
        port = PORTS[offset % len(PORTS)]
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("somebody listens at every port")
