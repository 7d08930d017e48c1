"""Observers of the loop, called at every step in the thread that runs it. They measure, and change nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from tokenmill.schedule.sequence import Plan

__all__ = ["Observer", "Observers"]


class Observer:
    """Does nothing; a subclass overrides the calls that it needs."""

    def phase(self, name: str, plan: Plan | None) -> None:
        """A phase has ended: begin, plan (with the plan), run, sample (with the plan as it was computed), deliver."""

    def logits(self, plan: Plan, logits_RV: Tensor) -> None:
        """The wanted rows of a plan, as computed."""


class Observers:
    """The observers of one core. in_order: one of them needs each step to be read before the next begins."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []
        self._num_in_order = 0

    def __len__(self) -> int:
        return len(self._observers)

    @property
    def in_order(self) -> bool:
        """See the class."""
        return self._num_in_order > 0

    @contextmanager
    def added(self, observer: Observer, in_order: bool = False) -> Iterator[None]:
        """Inside this context, call an observer at every step."""
        self._observers = [*self._observers, observer]
        self._num_in_order += in_order
        try:
            yield
        finally:
            self._observers = [each for each in self._observers if each is not observer]
            self._num_in_order -= in_order

    def phase(self, name: str, plan: Plan | None = None) -> None:
        """See Observer."""
        for observer in self._observers:
            observer.phase(name, plan)

    def logits(self, plan: Plan, logits_RV: Tensor) -> None:
        """See Observer."""
        for observer in self._observers:
            observer.logits(plan, logits_RV)
