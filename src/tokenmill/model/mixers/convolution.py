"""A short convolution over time for each channel, whose last inputs are the state of a text.

It is computed in float32: the sum over the taps runs from the oldest input to the newest.
"""

import torch
from torch import Tensor

from tokenmill.cache.padded_step import PaddedStep
from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.model.mixers.padded_states import is_span, read_states, saves_of, without_padding, write_states
from tokenmill.model.mixers.rounds import taps_of


def convolve(
    x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, kept: LayerStates, step: Step | PaddedStep
) -> Tensor:
    """Convolve each channel with its taps, [T, C] in float32; read and store the inputs of earlier tokens, which are
    the first state of the layer.
    """
    if isinstance(step, PaddedStep):
        return _convolve_padded(x_TC, weight_CL, bias_C, kept.tensors[0], step)
    taps = taps_of(step, weight_CL.shape[1])
    before_BWC = kept.read(taps.slots, 0)
    column_RC = torch.cat([before_BWC.flatten(0, 1), x_TC.float()])
    out_TC = torch.zeros_like(x_TC, dtype=torch.float32)
    for tap, weight_C in enumerate(weight_CL.float().unbind(1)):
        out_TC += column_RC[taps.places_TL[:, tap]] * weight_C
    kept.write(0, taps.saved, column_RC[taps.kept_SW])
    return out_TC if bias_C is None else out_TC + bias_C.float()


def _convolve_padded(
    x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, states: Tensor, step: PaddedStep
) -> Tensor:
    before_BWC, x_TC = read_states(states, step), x_TC.float()
    length = weight_CL.shape[1]
    if is_span(x_TC, step):
        column_RC = torch.cat([before_BWC[0], x_TC])
        inputs = [column_RC[tap : tap + x_TC.shape[0]] for tap in range(length)]
        counts_S, _ = saves_of(step)
        kept_SWC = column_RC[counts_S[:, None] + torch.arange(length - 1, device=x_TC.device)]
    else:
        column_BLC = torch.cat([before_BWC, x_TC[:, None]], dim=1)
        inputs, kept_SWC = list(column_BLC.unbind(1)), column_BLC[:, 1:]
    out_TC = torch.zeros_like(x_TC)
    for input_TC, weight_C in zip(inputs, weight_CL.float().unbind(1), strict=True):
        out_TC = out_TC + input_TC * weight_C
    write_states(states, step, kept_SWC)
    out_TC = without_padding(out_TC, step) if is_span(x_TC, step) else out_TC
    return out_TC if bias_C is None else out_TC + bias_C.float()
