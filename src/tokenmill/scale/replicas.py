"""Replicas on Ray Serve: deployment Mill has an engine in each replica, and deployment Gate is what clients see.

`app` builds both, for `serve run tokenmill.scale.replicas:app model=...` and for a config file of Ray Serve. `replicas`
runs Mill alone on a Ray of its own, behind a gate in the process of `tokenmill serve --replicas`.
"""

import asyncio
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import Message

from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load
from tokenmill.errors import ConfigError, TokenmillError
from tokenmill.hub.names import locate
from tokenmill.loader.default_length import part_of_free
from tokenmill.loader.fit import SEQUENCES_PER_CORE, fit_for_many
from tokenmill.model.families import read_config
from tokenmill.scale.fleet import AllBusy, Call, Fleet, Part, ReplicaLost, known_replicas
from tokenmill.scale.gate import Gate
from tokenmill.scale.head_router import HeadRouter
from tokenmill.scale.mill import Mill
from tokenmill.serve.http.guard import Guard
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.start.options import Options, read_keys
from tokenmill.settings.engine_config import DEFAULT_MODEL, EngineConfig
from tokenmill.weights.checkpoint import foreseen_config

NAME = "tokenmill"  # of the application
NUM_OTHERS = 8  # requests that compute nothing, beyond a replica's places
RETRY_AFTER_S = 1
MAX_ON_THE_WAY = 512  # requests of one gate that are being routed; a replica that is full refuses them itself
MAX_THROUGH_GATE = 10_000  # requests; it is Mill that takes no more than it can
SERVER = ("name", "max_queued", "is_strict", "max_body", "metrics_prefix", "session_dir", "stall_s", "seed")
"""The settings of Options that a replica has; connections are Ray Serve's own."""
NUM_FALLBACKS = 64  # replicas that are asked after the one of a key, where that is full

HEALTH = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/health",
    "raw_path": b"/health",
    "query_string": b"",
    "root_path": "",
    "headers": [],
}


@dataclass(frozen=True)
class Setup:
    """The model and settings of each replica. num_engines: how many share the memory of one machine.

    engine.threads and engine.max_sequences are set. longest_s: the longest time of an answer. A replica that is to end
    waits as long if no other replica takes the answer over. chat_template: in the place of the model's own.
    """

    engine: EngineConfig
    options: Options
    num_engines: int = 1
    longest_s: float = 600.0
    chat_template: str | None = None


class Replica:
    """The deployment Mill: one engine, see Mill."""

    def __init__(self, setup: Setup) -> None:
        self._name = serve.get_replica_context().replica_id.unique_id
        self._mill = Mill(load_engine(setup), setup.options)
        self._is_warm = False

    async def answer(
        self, scope: dict[str, Any], body: bytes, written: Resumption | None, avoid: list[str]
    ) -> AsyncGenerator[tuple[str, list[Message]], None]:
        """Answer as Mill does; this replica's name comes first, before anything is known. avoid: for the router."""
        yield self._name, []
        answer = self._mill.answer(scope, body, written)
        try:
            async for messages in answer:
                yield self._name, messages
        finally:
            await answer.aclose()

    async def page(self, scope: dict[str, Any]) -> tuple[str, bytes]:
        """Return the body that a GET gives."""
        messages = [message async for part in self._mill.answer(scope, b"") for message in part]
        return self._name, b"".join(message.get("body", b"") for message in messages)

    async def check_health(self) -> None:
        """Check the engine; Ray Serve asks every few seconds, and replaces a replica that fails or hangs."""
        if not self._is_warm:
            await self._mill.warm_up()
            self._is_warm = True
        self._mill.check_health()

    def __del__(self) -> None:
        if hasattr(self, "_mill"):
            self._mill.close()


def load_engine(setup: Setup) -> Engine:
    """Load the engine of one replica, with a cache that fits beside the caches of the others on its machine."""
    config = setup.engine
    model = read_config(foreseen_config(locate(config.model)))
    engine = load(fit_for_many(config, model, config.max_sequences, part_of_free(setup.num_engines)))
    if setup.chat_template is not None and engine.tokenizer is not None:
        engine.tokenizer.use_template(setup.chat_template)
    return engine


def mill(setup: Setup, num_replicas: int | None, autoscaling: AutoscalingConfig | None = None) -> Any:
    """Bind the deployment Mill: with a number of replicas, or with as many as autoscaling finds are needed."""
    threads = setup.engine.threads
    assert threads is not None and setup.engine.max_sequences is not None
    number = {"num_replicas": num_replicas} if autoscaling is None else {"autoscaling_config": autoscaling}
    deployment = serve.deployment(
        Replica,
        name="Mill",
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=setup.engine.max_sequences + setup.options.max_queued + NUM_OTHERS,
        max_queued_requests=MAX_ON_THE_WAY,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=RETRY_AFTER_S),
        graceful_shutdown_wait_loop_s=0.5,
        graceful_shutdown_timeout_s=setup.longest_s,
        health_check_period_s=2.0,
        health_check_timeout_s=30.0,
        request_router_config=RequestRouterConfig(
            request_router_class=HeadRouter,
            request_router_kwargs={"fleet": NAME, "num_fallback_replicas": NUM_FALLBACKS},
        ),
        **number,
    )
    return deployment.bind(setup)


class ServeFleet(Fleet):
    """The replicas of the deployment Mill."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def start(self) -> None:
        """Begin to know the replicas: the router begins with the first call."""
        async for _ in self.answer(Call(HEALTH, b"", "")):
            pass

    @property
    def replicas(self) -> Set[str]:
        return known_replicas(NAME)

    async def answer(self, call: Call) -> AsyncGenerator[Part, None]:
        handle = self._handle.options(stream=True, session_id=call.key, method_name="answer")
        parts = handle.remote(call.scope, call.body, call.written, avoid=sorted(call.avoid))
        is_over = False
        try:
            async for replica, messages in parts:
                yield Part(replica, messages)
            is_over = True
        except BackPressureError:
            raise AllBusy(RETRY_AFTER_S) from None
        except (RayError, RayServeException) as error:
            raise ReplicaLost(f"{type(error).__name__}: {error}".splitlines()[0]) from None
        finally:
            if not is_over:
                with suppress(Exception):
                    parts.cancel()

    async def ask_all(self, scope: dict[str, Any]) -> dict[str, bytes]:
        if not self.replicas:
            return {}
        try:
            return dict(await asyncio.to_thread(self._handle.broadcast("page", scope).results))
        except (RayError, RayServeException):
            return {}


class Arguments(BaseModel):
    """The arguments of `app`, as a config file of Ray Serve or a command line has them.

    engine: settings of EngineConfig, such as threads, which each replica has. server: settings of Options, such as
    max_queued. replicas: their number; or min_replicas to max_replicas, as many as the requests in flight need.
    replicas_of_a_machine: that share its memory. longest_s: see Setup. api_key_file: a key in each line.
    """

    model_config = ConfigDict(extra="forbid")

    model: str = DEFAULT_MODEL
    engine: dict[str, Any] = Field(default_factory=dict)
    server: dict[str, Any] = Field(default_factory=dict)
    replicas: int = Field(default=1, ge=1)
    min_replicas: int | None = Field(default=None, ge=0)
    max_replicas: int | None = Field(default=None, ge=1)
    replicas_of_a_machine: int = Field(default=1, ge=1)
    gates: int = Field(default=1, ge=1)
    longest_s: float = Field(default=600.0, gt=0)
    api_key_file: Path | None = None

    @property
    def setup(self) -> Setup:
        """The setup of each replica. ConfigError for settings that there are not."""
        _check_names("engine", self.engine, [each.name for each in fields(EngineConfig)])
        _check_names("server", self.server, SERVER)
        config = EngineConfig(**{"model": self.model, "threads": 1, **self.engine})
        sequences = self.engine.get("max_sequences", SEQUENCES_PER_CORE * (config.threads or 1))
        keys = read_keys(os.environ.get("TOKENMILL_API_KEY"), self.api_key_file)
        folder = self.server.get("session_dir")
        given = {**self.server, "session_dir": None if folder is None else Path(folder)}
        options = Options(**{"name": self.model, "keys": keys, **given})
        config = replace(config, max_sequences=sequences)
        return Setup(config, options, self.replicas_of_a_machine, self.longest_s)

    @property
    def autoscaling(self) -> AutoscalingConfig | None:
        """The settings of Ray Serve's autoscaler: a replica for as many texts as run together."""
        if self.max_replicas is None:
            return None
        return AutoscalingConfig(
            min_replicas=1 if self.min_replicas is None else self.min_replicas,
            max_replicas=self.max_replicas,
            target_ongoing_requests=float(self.setup.engine.max_sequences or 1),
            upscale_delay_s=10.0,
            downscale_delay_s=300.0,
        )


def _check_names(of: str, given: dict[str, Any], known: Sequence[str]) -> None:
    if wrong := [name for name in given if name not in known]:
        raise ConfigError(f"{of}.{wrong[0]}", given[wrong[0]], f"its settings are {', '.join(sorted(known))}", "args")


class GateReplica:
    """The deployment Gate: it checks keys and limits, and sends each request to a replica of Mill."""

    async def __init__(self, handle: DeploymentHandle, options: Options) -> None:  # type: ignore[misc]
        fleet = ServeFleet(handle)
        await fleet.start()
        self._gate = Guard(Gate(fleet), options, is_loopback=False)

    def __serve_build_asgi_app__(self) -> Guard:
        return self._gate


def app(args: Arguments) -> Any:
    """Build the application for a cluster: Gate in front of Mill."""
    setup, autoscaling = args.setup, args.autoscaling
    bound = mill(setup, args.replicas, autoscaling)
    gate = serve.deployment(
        serve.ingress()(GateReplica),
        name="Gate",
        num_replicas=args.gates,
        ray_actor_options={"num_cpus": 0.1},
        max_ongoing_requests=MAX_THROUGH_GATE,
        graceful_shutdown_timeout_s=setup.longest_s,
    )
    return gate.bind(bound, setup.options)


STORE_BYTES = 100 * 2**20  # requests and answers are small; Ray's default is 30 % of the memory


@contextmanager
def replicas(setup: Setup, number: int, num_cpus: int | None = None) -> Iterator[ServeFleet]:
    """Run this many replicas on this machine alone, until the end of this context; then Ray ends too. A SystemExit, as
    by a second signal, waits for no texts. num_cpus: what Ray counts of this machine, by default as many as the
    replicas need.
    """
    with _local_ray(num_cpus or number * (setup.engine.threads or 1)):
        logging.getLogger("ray.serve").setLevel(logging.ERROR)  # a line for each request that is refused
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        try:
            logging_config = {"log_level": "ERROR"}
            handle = serve.run(mill(setup, number), name=NAME, route_prefix=None, logging_config=logging_config)
        except RuntimeError as error:
            raise TokenmillError(f"the replicas did not start: {error}") from None
        waits = True
        try:
            yield ServeFleet(handle)
        except SystemExit:
            waits = False
            raise
        finally:
            with suppress(Exception):  # Ray may be gone already
                if waits:
                    serve.shutdown()


@contextmanager
def _local_ray(num_cpus: int) -> Iterator[None]:
    """Start a Ray on this machine, whatever RAY_ADDRESS says, which leaves nothing behind."""
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
