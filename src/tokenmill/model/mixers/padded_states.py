"""States of a padded step: what a compiler traces in the place of the loop over texts and tokens."""

import torch
from torch import Tensor

from tokenmill.cache.padded_step import PaddedStep


def is_span(rows_T: Tensor, step: PaddedStep) -> bool:
    """Tell whether the step is one span, not a token of each sequence. (A tracer takes len for a constant.)"""
    assert step.states_B is not None, "a step of a model with states"
    return step.states_B.shape[0] == 1 and rows_T.shape[0] > 1


def saves_of(step: PaddedStep) -> tuple[Tensor, Tensor]:
    """Return the counts of tokens and the slots of a step's saves, [S] each."""
    assert step.saves_S2 is not None, "a step of a model with states"
    return step.saves_S2[:, 0], step.saves_S2[:, 1]


def read_states(states: Tensor, step: PaddedStep) -> Tensor:
    """Read the states with which the sequences begin; zeros where a text begins."""
    assert step.states_B is not None, "a step of a model with states"
    return torch.where(_as_states(step.states_B, states) >= 0, states[step.states_B.clamp(min=0)], 0)


def write_states(states: Tensor, step: PaddedStep, values: Tensor) -> None:
    """Write the states after the tokens of each save, in place."""
    _, slots_S = saves_of(step)
    at_S = slots_S.clamp(min=0)
    states[at_S] = torch.where(_as_states(slots_S, states) >= 0, values, states[at_S])


def _as_states(slots: Tensor, states: Tensor) -> Tensor:
    return slots.view(-1, *[1] * (states.dim() - 1))


def without_padding(rows_T: Tensor, step: PaddedStep) -> Tensor:
    """Give the tokens of padding the row of the last token of the span, as they have everywhere."""
    counts_S, _ = saves_of(step)
    last = counts_S[-1] - 1
    return rows_T[torch.minimum(torch.arange(rows_T.shape[0], device=last.device), last)]
