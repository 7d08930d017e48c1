"""A sequence that is kept for somebody, and released with them at the latest."""

from tokenmill.engine.core import Core
from tokenmill.schedule.sequence import Sequence


class Held:
    """Keeps a sequence until `release`, or until this is garbage-collected, as after an interrupt within `release`.
    is_held: it is not released yet.

    It must not be reachable from the sequence, which the scheduler knows until it is released.
    """

    def __init__(self, core: Core, sequence: Sequence) -> None:
        self._core, self._sequence = core, sequence
        self.is_held = True
        core.release_with(self, sequence)

    def release(self) -> None:
        """End the sequence for good and give its blocks back, before the next step."""
        if self.is_held:
            self._core.release(self._sequence)
            self.is_held = False
