"""Replicas on this machine alone: a Ray of its own, and the gate in this process, at the server's socket."""

import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import ray
from ray import serve

from tokenmill.errors import TokenmillError
from tokenmill.scale.gate import Gate
from tokenmill.scale.replicas import NAME, ServeFleet, Setup, mill
from tokenmill.serve.draining import DrainingServer
from tokenmill.serve.guard import Guard
from tokenmill.serve.options import Options
from tokenmill.serve.run import is_loopback

STORE_BYTES = 100 * 2**20  # requests and answers are small; Ray's default is 30 % of the memory


class GateServer(DrainingServer):
    """The gate at a socket, until a signal comes or `drain` is called."""

    def __init__(
        self, fleet: ServeFleet, taken: socket.socket, options: Options, tell: Callable[[str], None] | None = None
    ) -> None:
        """tell: writes a line for each request."""
        self._fleet, self._taken, self._gate = fleet, taken, Gate(fleet)
        super().__init__(Guard(self._gate, options, is_loopback(taken)), options, tell)

    def serve_to_end(self) -> None:
        """Serve."""
        self.run(sockets=[self._taken])

    @property
    def num_open(self) -> int:
        """See DrainingServer."""
        return self._gate.num_open

    def refuse_new(self) -> None:
        """See DrainingServer."""
        self._gate.is_draining = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server. The router begins with the first call, and only then knows the replicas."""
        await self._fleet.start()
        await super().startup(sockets)


@contextmanager
def replicas(setup: Setup, number: int) -> Iterator[ServeFleet]:
    """So many replicas, until the end of this context; then Ray ends too."""
    with _local_ray(number * (setup.engine.threads or 1)):
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        try:
            handle = serve.run(
                mill(setup, NAME, number), name=NAME, route_prefix=None, logging_config={"log_level": "WARNING"}
            )
        except RuntimeError as error:
            raise TokenmillError(f"the replicas did not start: {error}") from None
        try:
            yield ServeFleet(handle, NAME)
        finally:
            with suppress(Exception):  # Ray may be gone already
                serve.shutdown()


@contextmanager
def _local_ray(num_cpus: int) -> Iterator[None]:
    """A Ray on this machine, whatever RAY_ADDRESS says, which leaves nothing behind."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = tempfile.mkdtemp(prefix="tokenmill-ray-")
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
        )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
