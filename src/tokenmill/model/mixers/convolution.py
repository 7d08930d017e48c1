"""A short convolution over time for each channel, whose last inputs are the state of a text.

It is computed in float32: the sum over the taps runs from the oldest input to the newest.
"""

from collections.abc import Iterable

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
    out_TC = _sum((column_RC[places_T] for places_T in taps.places_TL.unbind(1)), weight_CL, bias_C)
    kept.write(0, taps.saved, column_RC[taps.kept_SW])
    return out_TC


def _sum(taps: Iterable[Tensor], weight_CL: Tensor, bias_C: Tensor | None) -> Tensor:
    """Sum the inputs [T, C] of each tap, from the oldest to the newest, times the tap's weights."""
    weights = weight_CL.float().unbind(1)
    out_TC = torch.zeros((), device=weight_CL.device)
    for input_TC, weight_C in zip(taps, weights, strict=True):
        out_TC = out_TC + input_TC * weight_C
    return out_TC if bias_C is None else out_TC + bias_C.float()


def _convolve_padded(
    x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, states: Tensor, step: PaddedStep
) -> Tensor:
    before_BWC, x_TC = read_states(states, step), x_TC.float()
    num_before = before_BWC.shape[1]
    if not is_span(x_TC, step):
        column_BLC = torch.cat([before_BWC, x_TC[:, None]], dim=1)
        write_states(states, step, column_BLC[:, 1:])
        return _sum(column_BLC.unbind(1), weight_CL, bias_C)
    column_RC = torch.cat([before_BWC[0], x_TC])
    counts_S, _ = saves_of(step)
    write_states(states, step, column_RC[counts_S[:, None] + torch.arange(num_before, device=x_TC.device)])
    taps = [column_RC[tap : tap + x_TC.shape[0]] for tap in range(num_before + 1)]
    return without_padding(_sum(taps, weight_CL, bias_C), step)
