"""The tokens of a step in the order in which states take them.

The tokens of one text change its states one after the other; texts do not depend on each other. So all texts take their
first token in one round, then their second, and so on. The bits of a text then depend neither on its chunks nor on its
neighbours. Everything here depends on the step alone, not on the layer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmill.cache.step import Step
from tokenmill.memory.transfer import to_device


@dataclass(frozen=True)
class Round:
    """The rows of one round: a token of each of the first texts. rows_B: their places among the packed tokens. saved:
    (text, slot) for states that are stored after it.
    """

    rows_B: Tensor
    saved: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rounds:
    """slots: of each text's states before the step, long spans first, None where a text begins. rounds: see Round."""

    slots: list[int | None]
    rounds: list[Round]


@dataclass(frozen=True)
class Taps:
    """The inputs of a convolution over time, as places in a column of earlier inputs, L - 1 of each text, with the
    step's own after them.

    places_TL: the inputs of each token. kept_SW: the inputs that are stored in `slots`, for the next tokens.
    """

    slots: list[int | None]
    places_TL: Tensor
    kept_SW: Tensor
    saved: list[int]


def rounds_of(step: Step) -> Rounds:
    return step.once("rounds", lambda: _rounds(step))


def taps_of(step: Step, length: int) -> Taps:
    """Find the inputs of a convolution of so many taps."""
    return step.once(("taps", length), lambda: _taps(step, length))


def _rounds(step: Step) -> Rounds:
    spans = sorted(step.spans, key=lambda span: -span.count)
    rounds = []
    for number in range(spans[0].count if spans else 0):
        there = [span for span in spans if span.count > number]
        rows = to_device([span.first + number for span in there], step.device)
        saved = [(text, slot) for text, span in enumerate(there) for count, slot in span.saves if count == number + 1]
        rounds.append(Round(rows, tuple(saved)))
    return Rounds([span.state for span in spans], rounds)


def _taps(step: Step, length: int) -> Taps:
    before, own = length - 1, len(step.spans) * (length - 1)
    places, kept, saved = [], [], []
    for number, span in enumerate(step.spans):
        earlier = range(number * before, (number + 1) * before)
        column = torch.tensor([*earlier, *range(own + span.first, own + span.first + span.count)], dtype=torch.int64)
        places.append(column.unfold(0, length, 1))
        for count, slot in span.saves:
            kept.append(column[count : count + before])
            saved.append(slot)
    whole = torch.cat(places) if places else torch.empty((0, length), dtype=torch.int64)
    stored = torch.stack(kept) if kept else torch.empty((0, before), dtype=torch.int64)
    return Taps([span.state for span in step.spans], whole.to(step.device), stored.to(step.device), saved)
