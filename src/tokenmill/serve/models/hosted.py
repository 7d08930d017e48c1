"""One of several models: its settings, whether it is loaded, who uses it, and who waits for it."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from tokenmill.errors import TokenmillError
from tokenmill.hub.names import locate
from tokenmill.serve.facts.described import Described, describe_files, describe_service
from tokenmill.serve.http.errors import ApiError, EngineDied
from tokenmill.serve.request.fields import LATEST
from tokenmill.serve.start.options import Options
from tokenmill.serve.start.server import Served
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.adapters.named import named_adapters, paths_of_settings, weights_bytes

UNLOADED, LOADING, LOADED, UNLOADING = "unloaded", "loading", "loaded", "unloading"
UNREADABLE = "unreadable"  # told of a model whose files are gone or damaged since it was described

log = logging.getLogger(__name__)


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


class ComingAdapter(NamedTuple):
    """An adapter that a client loads: its name, and its bytes by the size of its file."""

    name: str
    num_bytes: int


class Waiter(NamedTuple):
    """A request that waits until its model is loaded, and until there is room for the adapter that it brings, if any.
    served: gets the loaded model; a cancelled one waits no more.
    """

    served: asyncio.Future[Served]
    adapter: ComingAdapter | None


def plain(name: str) -> str:
    """Return a name for a comparison: letters of one case, without the tag that Ollama's clients add."""
    return name.casefold().removesuffix(LATEST)


@dataclass(eq=False)
class Hosted:
    """A model of a server that has several, used in the event loop alone.

    served: while it is loaded. users: requests that use it. waiters: of requests that wait until it is loaded;
    waiting_of: their number by key. is_leaving: it is unloaded when its users are done, and takes no further ones.
    used_s: when the last user was done; loaded_s: when it was loaded, took_s: how long that took. adapters: paths by
    names, which it had when it was unloaded and gets again; None before that. lost: of these adapters, the ones that
    could not be loaded again. coming: the adapters that its users load just now. planned_bytes: memory of the model by
    its plan, made anew before each load.
    """

    setup: ModelSetup
    keep_alive_s: float | None = 0.0
    state: str = UNLOADED
    served: Served | None = None
    users: int = 0
    waiters: deque[Waiter] = field(default_factory=deque)
    is_leaving: bool = False
    used_s: float = 0.0
    loaded_s: float = 0.0
    took_s: float = 0.0
    num_loads: int = 0
    waiting_of: Counter[bytes] = field(default_factory=Counter)
    adapters: dict[str, Path] | None = None
    lost: dict[str, Path] = field(default_factory=dict)
    coming: list[ComingAdapter] = field(default_factory=list)
    planned_bytes: int = 0
    _described: Described | None = None

    def __post_init__(self) -> None:
        self.keep_alive_s, self.planned_bytes = self.setup.keep_alive_s, self.setup.num_bytes

    @property
    def name(self) -> str:
        """The name that clients call it."""
        return self.setup.name

    @property
    def names(self) -> list[str]:
        """The names by which requests ask for it: its own and its adapters'."""
        return [self.name, *self.adapter_names]

    @property
    def adapter_names(self) -> list[str]:
        """The names of its adapters, which are loaded with it or will be."""
        if self.served is not None:
            return [*self.served.service.model.adapters, *self.lost]
        return [*(named_adapters(self.setup.engine.lora_modules) if self.adapters is None else self.adapters)]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes while it is loaded: by its plan, and for adapters that clients load beside."""
        planned = set(paths_of_settings(self.setup.engine))
        if self.served is not None:
            there = self.served.engine.adapters
            beside = [(Path(each.path), each.num_bytes) for each in there.values()]
        else:
            beside = [(path, weights_bytes(path)) for path in (self.adapters or {}).values()]
        own = self.planned_bytes + sum(size for path, size in beside if path not in planned)
        return own + sum(each.num_bytes for each in self.coming)

    def refuse(self, waiter: Waiter, error: ApiError) -> None:
        """Let a request wait no more, and raise the error in it."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        if not waiter.served.done():
            waiter.served.set_exception(error)

    @property
    def max_waiting(self) -> int:
        """Requests that may wait for it: as many as would run or wait if it were loaded."""
        return (self.setup.engine.max_sequences or 1) + self.setup.options.max_queued

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
        engine, names = self.served.engine, self.served.service.model.adapters
        self.adapters = self.lost | {name: Path(engine.adapters[name].path) for name in names}

    async def describe(self) -> Described:
        """Describe the model, whether it is loaded or not. In a thread its files are read, the first time and when they
        have changed. Where they cannot be read any more, the last facts are told, with the state UNREADABLE.
        """
        if self.served is not None and self.state == LOADED:
            return describe_service(self.served.service)
        last = self._described
        try:
            found = await asyncio.to_thread(self._described_anew, last)
        except (TokenmillError, OSError) as error:
            if last is None:
                raise
            log.warning("%s was described before, but its files cannot be read any more: %s", self.name, error)
            return replace(last, state=UNREADABLE)
        if self._described is last:  # else it was loaded and unloaded meanwhile
            self._described = found
        return replace(found, state=self.state)

    def _described_anew(self, last: Described | None) -> Described:
        """Describe the files; return the last facts where these files have not changed."""
        if last is not None and not last.files.have_changed:
            return last
        engine = self.setup.engine
        found = describe_files(self.name, locate(engine.model), engine, self.setup.template)
        return found if last is None else replace(found, adapters=last.adapters)


def next_to_go(there: Iterable[Hosted]) -> Hosted:
    """Choose the model that is unloaded where there is no room: one without users, that was used longest ago."""
    return min(there, key=lambda each: (each.users > 0, each.keep_alive_s is None, each.used_s))


def died(hosted: Iterable[Hosted]) -> EngineDied | None:
    """Return the error of an engine that hangs, if one does, in any thread. One that has failed is loaded anew."""
    for each in hosted:
        if (served := each.served) is not None and served.driver.is_hung:
            return EngineDied(f"the engine of {each.name} hangs: a step takes much longer than any before it")
    return None
