"""One of several models: its settings, whether it is loaded, who uses it, and who waits for it."""

import asyncio
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenmill.hub.names import locate
from tokenmill.serve.facts.described import Described, describe_files, describe_service
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import Served
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.adapters.named import named_adapters

UNLOADED, LOADING, LOADED, UNLOADING = "unloaded", "loading", "loaded", "unloading"


@dataclass(frozen=True)
class ModelSetup:
    """The settings of one model. options: of its server, with the name that clients call it. template: in the place of
    its own chat template. keep_alive_s: how long it stays loaded after its last request; None: for ever. num_bytes: of
    memory that it takes while it is loaded.
    """

    engine: EngineConfig
    options: Options
    template: str | None = None
    keep_alive_s: float | None = 300.0
    num_bytes: int = 0

    @property
    def name(self) -> str:
        """The name that clients call it."""
        return self.options.name


@dataclass(eq=False)
class Hosted:
    """A model of a server that has several, used in the event loop alone.

    served: while it is loaded. users: requests that use it. waiters: of requests that wait until it is loaded.
    is_leaving: it is unloaded when its users are done, and takes no further ones. has_failed: its engine has. used_s:
    when the last user was done; loaded_s: when it was loaded, took_s: how long that took. adapters: paths by names, of
    those that clients have loaded, which are loaded again with it.
    """

    setup: ModelSetup
    keep_alive_s: float | None = 0.0
    state: str = UNLOADED
    served: Served | None = None
    users: int = 0
    waiters: deque[asyncio.Future[Served]] = field(default_factory=deque)
    is_leaving: bool = False
    has_failed: bool = False
    used_s: float = 0.0
    loaded_s: float = 0.0
    took_s: float = 0.0
    num_loads: int = 0
    adapters: dict[str, Path] = field(default_factory=dict)
    _described: Described | None = None

    def __post_init__(self) -> None:
        self.keep_alive_s = self.setup.keep_alive_s

    @property
    def name(self) -> str:
        """The name that clients call it."""
        return self.setup.name

    @property
    def names(self) -> list[str]:
        """The names by which requests ask for it: its own and its adapters'."""
        own = named_adapters(self.setup.engine.lora_modules)
        return list(dict.fromkeys([self.name, *own, *self.adapters, *self._loaded_adapters]))

    @property
    def is_usable(self) -> bool:
        """Tell whether a request can use it now."""
        return self.state == LOADED and not self.is_leaving

    @property
    def expires_s(self) -> float | None:
        """When it is unloaded unless it is used before, by the clock of used_s; None if it is not."""
        if self.state != LOADED or self.users or self.keep_alive_s is None:
            return None
        return self.used_s + self.keep_alive_s

    def note(self) -> None:
        """Keep what is to outlive the engine: the facts of the model, and the adapters that clients have loaded."""
        if self.served is None:
            return
        self._described = describe_service(self.served.service)
        given = named_adapters(self.setup.engine.lora_modules)
        engine = self.served.engine
        self.adapters = {name: Path(engine.adapters[name].path) for name in self._loaded_adapters if name not in given}

    def give_up(self) -> Served:
        """Return the server of the loaded model, and hold it no longer."""
        served, self.served = self.served, None
        assert served is not None, "it is loaded"
        return served

    def describe(self) -> Described:
        """Describe the model, whether it is loaded or not. The first time that reads files: call it in a thread."""
        if self.served is not None and self.state == LOADED:
            return describe_service(self.served.service)
        if self._described is None:
            engine = self.setup.engine
            self._described = describe_files(self.name, locate(engine.model), engine, self.setup.template)
        return replace(self._described, state=self.state)

    @property
    def _loaded_adapters(self) -> list[str]:
        return [] if self.served is None else list(self.served.service.model.adapters)
