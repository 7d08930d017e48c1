"""A short convolution over time for each channel, whose last inputs are the state of a text.

It is computed in float32: the sum over the taps runs from the oldest input to the newest.
"""

import torch
from torch import Tensor

from tokenmill.cache.padded_step import PaddedStep, StatesOver
from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.model.mixers.padded_states import read_states, run_span, slots_of, write_states
from tokenmill.model.mixers.rounds import taps_of


def convolve(
    x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, kept: LayerStates, step: Step | PaddedStep
) -> Tensor:
    """Convolve each channel with its taps, [T, C] in float32; read and store the inputs of earlier tokens, which are
    the first state of the layer.
    """
    if isinstance(step, PaddedStep):
        return _convolve_padded(x_TC, weight_CL, bias_C, kept.tensors[0], *slots_of(step))
    taps = taps_of(step, weight_CL.shape[1])
    before_BWC = kept.read(taps.slots, 0)
    column_RC = torch.cat([before_BWC.flatten(0, 1), x_TC.float()])
    out_TC = torch.zeros_like(x_TC, dtype=torch.float32)
    for tap, weight_C in enumerate(weight_CL.float().unbind(1)):
        out_TC += column_RC[taps.places_TL[:, tap]] * weight_C
    kept.write(0, taps.saved, column_RC[taps.kept_SW])
    return out_TC if bias_C is None else out_TC + bias_C.float()


def _convolve_padded(
    x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, states: Tensor, states_B: Tensor, saves_BC: Tensor
) -> Tensor:
    if saves_BC.shape[1] > 1:
        return convolve_span(x_TC, weight_CL, bias_C, states, states_B, saves_BC)
    column_BLC = torch.cat([read_states(states, states_B), x_TC.float()[:, None]], dim=1)
    out_BC = torch.zeros_like(x_TC, dtype=torch.float32)
    for tap, weight_C in enumerate(weight_CL.float().unbind(1)):
        out_BC = out_BC + column_BLC[:, tap] * weight_C
    write_states(states, saves_BC[:, 0], column_BLC[:, 1:])
    return out_BC if bias_C is None else out_BC + bias_C.float()


@torch.library.custom_op("tokenmill::convolve_span", mutates_args=("states",))
def convolve_span(
    x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, states: Tensor, states_B: Tensor, saves_BC: Tensor
) -> Tensor:
    """Convolve the tokens of one span: the operation for compiled code."""
    kept = StatesOver(states)
    return run_span(lambda count, step: convolve(x_TC[:count], weight_CL, bias_C, kept, step), states_B, saves_BC)


@convolve_span.register_fake
def _(
    x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, states: Tensor, states_B: Tensor, saves_BC: Tensor
) -> Tensor:
    return torch.empty_like(x_TC, dtype=torch.float32, memory_format=torch.contiguous_format)
