"""A sequence that is kept for somebody, and released with them at the latest."""

from tokenmill.engine.core import Core
from tokenmill.schedule.sequence import Sequence


class Held:
    """Keeps a sequence until `release`, or until this is garbage-collected, as after an interrupt within `release`.

    It must not be reachable from the sequence, which the scheduler knows until it is released.
    """

    def __init__(self, core: Core, sequence: Sequence) -> None:
        self._core, self._sequence = core, sequence
        self._finalizer = core.release_with(self, sequence)

    @property
    def is_held(self) -> bool:
        """Whether it is not released yet."""
        return self._finalizer.alive

    def release(self) -> None:
        """End the sequence for good and give its blocks back, before the next step."""
        if self._finalizer.alive:
            self._core.release(self._sequence)
            self._finalizer.detach()  # last: after an interrupt before it the garbage collector gives the blocks back
