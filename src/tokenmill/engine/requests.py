"""A request: continuations of a prompt that are queued together; the reading of prompts in all their forms."""

import math
from collections.abc import Callable, Iterator, Mapping, Set
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Any

from tokenmill.engine.outputs import Tracker
from tokenmill.errors import RequestError
from tokenmill.schedule.sequence import Sequence
from tokenmill.settings.sampling_params import SamplingParams
from tokenmill.value_reader import brief

Prompt = str | List[int]
NO_IDS = (str, bytes, bytearray, memoryview, Mapping, Set)  # types without numbers, or without an order


@dataclass(eq=False)
class Request:
    """Continuations of a prompt, or of several. Made by `Core.request`, queued by `Core.submit`, once.

    sequences: one for each continuation, prompt by prompt, as Piece.index counts them. deadline_s: the reading of
    Loop.clock, in seconds, from which on it fails with DeadlinePassed if it has not ended. trackers: one for each
    continuation, once the request is queued, with the continuation's `completion`, or its `error` until that is raised.
    """

    sequences: list[Sequence]
    deadline_s: float = math.inf
    trackers: list[Tracker] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Say whether every continuation has ended, well or with an error."""
        return bool(self.trackers) and all(each.has_ended for each in self.trackers)

    def forget_errors(self) -> None:
        """Forget the errors of all continuations, once one was raised; see Tracker.forget_error."""
        for each in self.trackers:
            each.forget_error()


def for_each(what: str, given: List[Any], make: Callable[[Any], Any]) -> list[Any]:
    """Call `make` for each item given; a RequestError then names the item by its number."""
    made = []
    for number, each in enumerate(given, start=1):
        try:
            made.append(make(each))
        except RequestError as error:
            which = f"{what} {number} of {len(given)}: " if len(given) > 1 or what != "prompt" else ""
            raise RequestError(f"{which}{error}") from None
    return made


def token_ids(given: Any, what: str = "prompt: a prompt is text (no bytes), or a list of whole numbers") -> list[int]:
    """Read token ids out of a list, array, tensor or iterator; RequestError for anything else."""
    if isinstance(given, SamplingParams):
        raise RequestError("settings are no prompt: give a SamplingParams as params=")
    try:
        ids = [plain(each) for each in plain(None if isinstance(given, NO_IDS) else given)]
    except TypeError:
        raise RequestError(f"{brief(given)} is no {what}, not {type(given).__name__}") from None
    if wrong := [each for each in ids if type(each) is not int]:
        raise RequestError(f"{brief(wrong[0])} is no token id: a prompt is text, or a list of whole numbers")
    return ids


def plain(value: Any) -> Any:
    """Turn a number, or numbers, of numpy or torch into Python's."""
    return value.tolist() if hasattr(value, "tolist") else value


def batch_of(prompt: Any) -> tuple[list[Any], bool]:
    """List the prompts that are meant, and say whether they were given as a list of prompts, which may be empty.

    One prompt is a text, or ids in a list, tuple, array or tensor. A generator is read to its end.
    """
    prompt = list(prompt) if isinstance(prompt, Iterator) else prompt
    if isinstance(prompt, NO_IDS) or not hasattr(prompt, "__len__") or getattr(prompt, "ndim", 1) == 0:
        return [prompt], False
    entries = list(prompt)
    many = not entries or isinstance(entries[0], str | list | tuple) or getattr(entries[0], "ndim", 0) > 0
    return (entries, True) if many else ([prompt], False)
