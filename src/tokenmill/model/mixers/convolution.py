"""A short convolution over time for each channel, whose last inputs are the state of a text.

It is computed in float32: the sum over the taps runs from the oldest input to the newest.
"""

import torch
from torch import Tensor

from tokenmill.cache.pool import LayerStates
from tokenmill.cache.step import Step
from tokenmill.model.mixers.rounds import taps_of


def convolve(x_TC: Tensor, weight_CL: Tensor, bias_C: Tensor | None, kept: LayerStates, step: Step) -> Tensor:
    """Convolve each channel with its taps, [T, C] in float32; read and store the inputs of earlier tokens, which are
    the first state of the layer.
    """
    taps = taps_of(step, weight_CL.shape[1])
    before_BWC = kept.read(taps.slots, 0)
    column_RC = torch.cat([before_BWC.flatten(0, 1), x_TC.float()])
    out_TC = torch.zeros_like(x_TC, dtype=torch.float32)
    for tap, weight_C in enumerate(weight_CL.float().unbind(1)):
        out_TC += column_RC[taps.places_TL[:, tap]] * weight_C
    kept.write(0, taps.saved, column_RC[taps.kept_SW])
    return out_TC if bias_C is None else out_TC + bias_C.float()
