"""Which of several models are in memory: loaded for a request, unloaded when they are idle or another needs the room.

One task loads and unloads, in the order in which models were asked for, and makes room for the adapters that clients
load: such a request uses its model only when there is room for the adapter beside it, lest two of them wait for each
other. Where there is no room, the model goes whose last request is the longest ago. A model that answers is waited for:
it takes no further requests, and is unloaded when the last of its requests is done. So models that do not fit together
take turns, and neither waits for ever. A turn lasts at least TURN times as long as the load took.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from collections.abc import Sequence as List
from contextlib import asynccontextmanager
from typing import Any

from tokenmill.errors import CapacityError
from tokenmill.serve.http.errors import ApiError, QueueFull
from tokenmill.serve.models.hosted import (
    LOADED,
    LOADING,
    UNLOADED,
    UNLOADING,
    ComingAdapter,
    Hosted,
    ModelSetup,
    Waiter,
    died,
    next_to_go,
    plain,
)
from tokenmill.serve.start.server import Served
from tokenmill.units import size

log = logging.getLogger(__name__)

TURN = 3  # so that loading takes a quarter of the time at most, where models take turns
RETRY_AFTER_S = 5

Load = Callable[[Hosted, Callable[[], None]], Served]


class Residents:
    """The models of a server, used in the event loop alone. room_bytes: for all that are loaded at once.

    plan, load, free: called in a thread. plan: counts the memory of a model as its files are now. load gets what is to
    be called, in any thread, when the engine has failed. free: gives the memory of ended engines back. tell: writes a
    line for each load. num_keys: clients have so many, of which none takes all places of those who wait.
    """

    def __init__(
        self,
        hosted: List[Hosted],
        room_bytes: int,
        plan: Callable[[ModelSetup], int],
        load: Load,
        free: Callable[[], None],
        tell: Callable[[str], None] | None = None,
        num_keys: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.all, self.room_bytes = list(hosted), room_bytes
        self._plan, self._load, self._free = plan, load, free
        self._tell, self._num_keys, self.clock = tell or (lambda _: None), num_keys, clock
        self._wanted: list[Hosted] = []
        self._wake = asyncio.Event()
        self.is_draining = False

    @asynccontextmanager
    async def using(
        self, hosted: Hosted, client: bytes = b"", adapter: ComingAdapter | None = None
    ) -> AsyncIterator[Served]:
        """Have a model loaded inside this context, and room for an adapter beside it. QueueFull where many wait for it,
        or many of one client; ApiError 503 where it cannot be loaded, and at the end; 400 for an adapter that does not
        fit beside it, 409 for an adapter with the name of another model.
        """
        if self.is_draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        if adapter is None and hosted.is_usable and hosted.served is not None:
            served = hosted.served
            hosted.users += 1
        else:
            served = await self._waited(hosted, client, adapter)
        try:
            yield served
        finally:
            self._release(hosted, adapter)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a model."""
        return sum(len(each.waiters) for each in self.all)

    @property
    def used_bytes(self) -> int:
        """Memory of the models that are loaded, by their plans, and of adapters beside them."""
        return sum(each.num_bytes for each in self.all if each.state != UNLOADED)

    def unload_soon(self, hosted: Hosted) -> None:
        """Unload a model when its requests are done."""
        hosted.is_leaving = True
        self._wake.set()

    def check_adapter(self, name: str, hosted: Hosted) -> None:
        """Raise ApiError for an adapter with the name of another model, or of its adapter, also a coming one."""
        for each in self.all:
            known = (*each.names, *(coming.name for coming in each.coming))
            if each is not hosted and plain(name) in map(plain, known):
                raise ApiError(409, f"{name!r} is the name of another model, or of its adapter", "lora_name")

    def refuse_new(self) -> None:
        """Take no more requests. It may be called from any thread."""
        self.is_draining = True
        for each in self.all:
            if (served := each.served) is not None:
                served.begin_to_end()

    async def run(self) -> None:
        """Load and unload, until this is cancelled."""
        while True:
            self._wake.clear()
            try:
                if self._wanted:
                    await self._bring(self._wanted[0])
                elif (due := self._due()) is not None:
                    await self._remove(due)
                else:
                    await self._woken(self._until_next())
            except Exception:  # what loads and unloads must go on for the other models
                log.exception("a model cannot be unloaded")

    def close(self, ends_now: bool = False) -> bool:
        """Unload all, when the event loop has ended; return whether no engine has failed. ends_now: no step is waited
        for.
        """
        self.is_draining = True
        is_hung = (lambda: True) if ends_now else self._is_hung
        have_lived = [each.served.end(is_hung) for each in self.all if each.served is not None]
        return all(have_lived)

    def _is_hung(self) -> bool:
        """Tell whether a step hangs, of whichever model, at the end of the server; before, its end is waited for."""
        return self.is_draining and died(self.all) is not None

    # ---- requests

    async def _waited(self, hosted: Hosted, client: bytes, adapter: ComingAdapter | None) -> Served:
        """Wait until the model is loaded, and the adapter has its room. They are counted by then."""
        most = hosted.max_waiting
        most_of_one = most if self._num_keys <= 1 else max(1, most - most // self._num_keys)
        if len(hosted.waiters) >= most or hosted.waiting_of[client] >= most_of_one:
            raise QueueFull(1, 0, RETRY_AFTER_S)
        waiter = Waiter(asyncio.get_running_loop().create_future(), adapter)
        hosted.waiters.append(waiter)
        hosted.waiting_of[client] += 1
        if hosted not in self._wanted:
            self._wanted.append(hosted)
        self._wake.set()
        try:
            return await waiter.served
        except asyncio.CancelledError:
            if waiter.served.done() and not waiter.served.cancelled() and waiter.served.exception() is None:
                self._release(hosted, adapter)  # it came in the same moment
            raise
        finally:
            hosted.waiting_of[client] -= 1
            if waiter in hosted.waiters:
                hosted.waiters.remove(waiter)
                self._wake.set()

    def _release(self, hosted: Hosted, adapter: ComingAdapter | None) -> None:
        hosted.users -= 1
        if adapter is not None:
            hosted.coming.remove(adapter)
        hosted.used_s = self.clock()
        self._wake.set()

    def _admit(self, hosted: Hosted, admitted: List[Waiter]) -> None:
        """Hand the loaded model to some who wait for it."""
        assert hosted.served is not None, "it is loaded"
        for waiter in admitted:
            hosted.waiters.remove(waiter)
            if not waiter.served.done():
                hosted.users += 1
                if waiter.adapter is not None:
                    hosted.coming.append(waiter.adapter)
                waiter.served.set_result(hosted.served)

    # ---- the task that loads and unloads

    async def _bring(self, hosted: Hosted) -> None:
        """Load a model for those who wait for it, and make room for it before; then for the first adapter that waits.
        Those behind it wait for their turn among the models.
        """
        try:
            if hosted.state == LOADED and hosted.is_leaving:
                await self._remove(hosted)
            if hosted.state != LOADED:
                await self._plan_anew(hosted)
                await self._make_room(hosted, hosted.num_bytes, lambda: bool(hosted.waiters))
                if not hosted.waiters:
                    return  # they have gone meanwhile
                await to_its_end(self._read(hosted))
            self._admit(hosted, [each for each in hosted.waiters if each.adapter is None])
            if hosted.waiters:
                await self._bring_adapter(hosted, hosted.waiters[0])
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (those who wait hear of it; the others go on)
            log.error("%s cannot be loaded: %s", hosted.name, error)
            self._refuse(hosted, error)
        finally:
            self._wanted.remove(hosted)
            if hosted.waiters:
                self._wanted.append(hosted)

    async def _bring_adapter(self, hosted: Hosted, waiter: Waiter) -> None:
        """Make room for an adapter beside its model, and admit the request that loads it."""
        assert waiter.adapter is not None, "who waits for the model alone has been admitted"
        name, num_bytes = waiter.adapter

        def is_wanted() -> bool:
            return hosted.is_usable and waiter in hosted.waiters

        def is_too_large() -> bool:
            return hosted.num_bytes + num_bytes > self.room_bytes

        try:  # not before it is known which of the model's coming adapters stay
            await self._until(lambda: not (hosted.coming and is_too_large() and is_wanted()))
            if is_wanted() and is_too_large():
                said = f"the adapter {name!r} takes {size(num_bytes)}, its model {size(hosted.num_bytes)}, of "
                raise ApiError(400, f"{said}{size(self.room_bytes)} (--memory)", "lora_path")
            await self._make_room(hosted, num_bytes, is_wanted)
            if is_wanted():  # else it has gone, or the engine has failed meanwhile
                self.check_adapter(name, hosted)
                self._admit(hosted, [waiter])
        except ApiError as error:
            hosted.refuse(waiter, error)

    def _refuse(self, hosted: Hosted, error: Exception) -> None:
        # What lies where on the server is nobody's business.
        said = str(error) if isinstance(error, CapacityError) else "the server's log says why"
        message = f"the model {hosted.name!r} cannot be loaded: {said}"
        for waiter in list(hosted.waiters):
            hosted.refuse(waiter, ApiError(503, message, "model", "model_not_loaded", RETRY_AFTER_S))

    async def _plan_anew(self, hosted: Hosted) -> None:
        """Count the memory of a model, whose files may be others now. CapacityError where it does not fit alone."""
        hosted.planned_bytes = await asyncio.to_thread(self._plan, hosted.setup)
        if hosted.num_bytes > self.room_bytes:
            raise CapacityError("memory for this model", hosted.num_bytes, self.room_bytes, "--memory", in_bytes=True)

    async def _read(self, hosted: Hosted) -> None:
        hosted.state, hosted.is_leaving = LOADING, False
        hosted.keep_alive_s = hosted.setup.keep_alive_s
        begun_s, loop = self.clock(), asyncio.get_running_loop()

        def failed() -> None:
            """Have the model unloaded, so that the next request loads it anew."""
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(self.unload_soon, hosted)

        try:
            hosted.served = await asyncio.to_thread(self._load, hosted, failed)
        finally:
            hosted.state = UNLOADED if hosted.served is None else LOADED
        hosted.loaded_s = hosted.used_s = self.clock()
        hosted.took_s, hosted.num_loads = hosted.loaded_s - begun_s, hosted.num_loads + 1
        self._tell(f"{hosted.name} is loaded ({hosted.took_s:.2f} s, {size(hosted.num_bytes)})")

    async def _make_room(self, hosted: Hosted, num_bytes: int, is_wanted: Callable[[], bool]) -> None:
        """Unload other models until there are so many bytes for this one, as long as they are wanted."""
        while self.used_bytes + num_bytes > self.room_bytes and is_wanted():
            there = [each for each in self.all if each.state == LOADED and each is not hosted]
            if not there:
                return  # alone it fits
            last = next_to_go(there)
            left_s = last.loaded_s + TURN * last.took_s - self.clock()
            if last.users and not last.is_leaving and left_s > 0:
                await self._until(lambda: any(not each.users for each in there), left_s)  # noqa: B023  (awaited here)
            else:
                await self._remove(last)

    async def _remove(self, hosted: Hosted) -> None:
        """Unload a model when its users are done."""
        hosted.is_leaving = True
        await self._until(lambda: not hosted.users)
        await to_its_end(self._end(hosted))

    async def _end(self, hosted: Hosted) -> None:
        assert hosted.served is not None, "it is loaded"
        hosted.note()
        hosted.state = UNLOADING
        begun_s = self.clock()
        try:
            await asyncio.to_thread(hosted.served.end, self._is_hung)
        finally:
            hosted.served = None
            await asyncio.to_thread(self._free)
            hosted.state, hosted.is_leaving = UNLOADED, False
        self._tell(f"{hosted.name} is unloaded ({self.clock() - begun_s:.2f} s)")

    async def _until(self, is_so: Callable[[], bool], within_s: float | None = None) -> None:
        """Wait until something is so, which may change whenever this is woken."""
        ends_s = None if within_s is None else self.clock() + within_s
        while not is_so() and (ends_s is None or self.clock() < ends_s):
            self._wake.clear()
            await self._woken(None if ends_s is None else max(ends_s - self.clock(), 0))

    async def _woken(self, within_s: float | None) -> None:
        """Wait until something has changed, at most so long."""
        with contextlib.suppress(TimeoutError):  # not asyncio.wait_for, which Python 3.11 may let a cancellation lose
            async with asyncio.timeout(within_s):
                await self._wake.wait()

    # ---- idle models

    def _idle(self) -> Iterator[tuple[float, Hosted]]:
        for each in self.all:
            if each.state == LOADED and not each.users:
                expires_s = each.used_s if each.is_leaving else each.expires_s
                if expires_s is not None:
                    yield expires_s, each

    def _due(self) -> Hosted | None:
        """Find a model whose time is over, or which must go since adapters take more memory than their files."""
        there = [each for each in self.all if each.state == LOADED]
        are_there = not any(each.coming for each in self.all)  # an adapter that has just come is counted twice
        if self.used_bytes > self.room_bytes and are_there and len(there) > 1:
            return next_to_go(there)
        return next((each for expires_s, each in self._idle() if expires_s <= self.clock()), None)

    def _until_next(self) -> float | None:
        """Compute the seconds until the next model is due; None without one."""
        return min((max(expires_s - self.clock(), 0.0) for expires_s, _ in self._idle()), default=None)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await what a cancellation must not break off: it is awaited first, and the cancellation goes on then."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
