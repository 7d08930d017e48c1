"""Replicas on this machine alone, on a Ray of their own; the gate is in this process, see gate_server.py."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import ray
from ray import serve

from tokenmill.errors import TokenmillError
from tokenmill.scale.replicas import NAME, ServeFleet, Setup, mill

STORE_BYTES = 100 * 2**20  # requests and answers are small; Ray's default is 30 % of the memory


@contextmanager
def replicas(setup: Setup, number: int, num_cpus: int | None = None) -> Iterator[ServeFleet]:
    """So many replicas, until the end of this context; then Ray ends too. num_cpus: what Ray counts of this machine, by
    default as many as the replicas need.
    """
    with _local_ray(num_cpus or number * (setup.engine.threads or 1)):
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # a line for each request that is refused
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        try:
            handle = serve.run(
                mill(setup, NAME, number), name=NAME, route_prefix=None, logging_config={"log_level": "ERROR"}
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
