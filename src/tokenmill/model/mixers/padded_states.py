"""States of a padded step: what a compiler traces in the place of the loop over texts and tokens.

A token of each sequence is written out for the compiler. The tokens of one span, which change a state one after the
other, are an operation of torch that the compiler calls and does not look into.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from tokenmill.cache.padded_step import PaddedStep
from tokenmill.cache.step import Span, Step


def slots_of(step: PaddedStep) -> tuple[Tensor, Tensor]:
    """Return states_B and saves_BC, which a step has where layers keep states."""
    assert step.states_B is not None and step.saves_BC is not None, "a step of a model with states"
    return step.states_B, step.saves_BC


def read_states(states: Tensor, slots_B: Tensor) -> Tensor:
    """Read the states in some slots; zeros for -1, since the text begins."""
    return torch.where(_like(slots_B, states) >= 0, states[slots_B.clamp(min=0)], 0)


def write_states(states: Tensor, slots_B: Tensor, values: Tensor) -> None:
    """Write states into slots, in place. The slots are all -1, and nothing changes, or none is."""
    at_B = slots_B.clamp(min=0)
    states[at_B] = torch.where(_like(slots_B, states) >= 0, values, states[at_B])


def _like(slots_B: Tensor, states: Tensor) -> Tensor:
    return slots_B.view(-1, *[1] * (states.dim() - 1))


def run_span(run: Callable[[int, Step], Tensor], states_B: Tensor, saves_BC: Tensor) -> Tensor:
    """Have the tokens of one span computed as those of a packed step; padding gets the result of the last token.

    run: takes the number of tokens and the step; returns a row of each. After the last token of a span a state is
    stored, so what follows is padding.
    """
    (state,), (saves,) = states_B.tolist(), saves_BC.tolist()
    saved = tuple((number, slot) for number, slot in enumerate(saves, 1) if slot >= 0)
    count = saved[-1][0] if saved else len(saves)
    span = Span(0, count, 0, None, None, state=None if state < 0 else state, saves=saved)
    out_T = run(count, Step((), (), (), [span], None, 0, saves_BC.device))
    return out_T[torch.arange(len(saves), device=out_T.device).clamp(max=count - 1)]
