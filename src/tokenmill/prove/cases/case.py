"""The interface of a case."""

from abc import ABC, abstractmethod
from typing import ClassVar

from tokenmill.prove.trial import Trial


class Case(ABC):
    """A case. needs: features that a route must offer; greedy_needs: features that greedy texts need. greedy, seeded:
    which of the two are asked for. is_once: one round is enough, and it goes through all routes and temperatures by
    itself.
    """

    needs: ClassVar[tuple[str, ...]] = ()
    greedy_needs: ClassVar[tuple[str, ...]] = ()
    greedy: ClassVar[bool] = True
    seeded: ClassVar[bool] = True
    is_once: ClassVar[bool] = False

    @abstractmethod
    async def round(self, trial: Trial) -> None:
        """Send a bounded number of requests, and compare their answers."""
