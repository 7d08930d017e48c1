"""Jobs that the driver runs for a client: a generation request, the scoring of one prompt, or the rows of a session.

Its methods are called in the engine's thread; `updates` is read in the event loop.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Piece, Tracker
from tokenmill.engine.requests import Request
from tokenmill.engine.session import Session
from tokenmill.schedule.sequence import Sequence

Update = list[Piece] | Exception


class Job(ABC):
    """updates: the pieces of each step, or the error that ended it; None once it is over. name: of the answer."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.loop = asyncio.get_running_loop()
        self.updates: asyncio.Queue[Update | None] = asyncio.Queue()
        self._is_silent = False

    def put(self, new: Update | None) -> None:
        """Add to `updates`. Called in the event loop."""
        self._is_silent = False
        self.updates.put_nowait(new)

    @contextmanager
    def silence_broken(self, after_s: float) -> Iterator[None]:
        """Inside this context, an empty list is put into `updates` when nothing was for `after_s` to twice as long."""
        self._timer = self.loop.call_later(after_s, self._look, after_s)
        try:
            yield
        finally:
            self._timer.cancel()

    def _look(self, after_s: float) -> None:
        if self._is_silent:
            self.updates.put_nowait([])
        self._is_silent, self._timer = True, self.loop.call_later(after_s, self._look, after_s)

    @abstractmethod
    def submit(self, core: Core) -> None:
        """Queue it."""

    @abstractmethod
    def take(self, core: Core) -> list[Piece]:
        """The pieces that are new. Raises the error that ended the job."""

    @abstractmethod
    def cancel(self, core: Core) -> None:
        """End it early."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether it has ended."""

    @property
    def trackers(self) -> list[Tracker]:
        """The trackers of its continuations."""
        return []


class Generation(Job):
    """A request, with all its continuations."""

    def __init__(self, request: Request, name: str = "") -> None:
        super().__init__(name)
        self._request = request

    def submit(self, core: Core) -> None:
        """See Job."""
        core.submit(self._request)

    def take(self, core: Core) -> list[Piece]:
        """See Job."""
        return core.take(self._request)

    def cancel(self, core: Core) -> None:
        """See Job."""
        core.cancel(self._request)

    @property
    def is_over(self) -> bool:
        """See Job."""
        return self._request.is_done

    @property
    def trackers(self) -> list[Tracker]:
        """See Job."""
        return self._request.trackers


class Scoring(Job):
    """A sequence of which nothing is sampled; its logits go to its `on_logits`."""

    def __init__(self, sequence: Sequence) -> None:
        super().__init__()
        self._sequence = sequence

    def submit(self, core: Core) -> None:
        """See Job."""
        core.enqueue(self._sequence)

    def take(self, core: Core) -> list[Piece]:
        """See Job."""
        core.check_scored(self._sequence)
        return []

    def cancel(self, core: Core) -> None:
        """See Job. It gives its blocks back, whether it has ended or not."""
        core.release(self._sequence)

    @property
    def is_over(self) -> bool:
        """See Job."""
        return self._sequence.finish_reason is not None


class SessionLoad(Job):
    """The rows of a session, loaded or computed; then `do` is called, before another step could take their blocks."""

    def __init__(self, session: Session, client: bytes, do: Callable[[], Any]) -> None:
        super().__init__()
        self._session, self._client, self._do = session, client, do
        self._is_loaded: Callable[[], bool] = lambda: True
        self.result: Any = None

    def submit(self, core: Core) -> None:
        """See Job."""
        self._is_loaded = self._session.begin_load(self._client)

    def take(self, core: Core) -> list[Piece]:
        """See Job."""
        if self.is_over:
            self.result = self._do()
        return []

    def cancel(self, core: Core) -> None:
        """See Job. Without a result the session is of no use."""
        if self.result is None:
            self._session.close()

    @property
    def is_over(self) -> bool:
        """See Job."""
        return self._is_loaded()
