"""The choice of the matrices of a 4-bit model that get 8 bits: the matrices whose rounding to 4 bits changes the
predictions most.

The matrices of one kind in one layer (in a mixture of experts, the matrices of all its experts) are rounded to nearest
in 4 bits, alone in an unrounded model. The mean KL divergence of the predictions on a few calibration texts, divided by
the bytes that 8 bits would add, is how much these matrices deserve them. That divergences add up is an approximation:
what the whole choice has gained is measured when the model is compared with its source.
"""

import math
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from tokenmill.calibrate.layers import LayerWalk
from tokenmill.calibrate.texts import Texts
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.weights.write.export import Export, ExportPlan
from tokenmill.weights.write.quantize import kind_of

NUM_TEXTS, LENGTH = 2, 96  # that divergences are measured on
Unit = tuple[int, str]  # the number of a layer, and a kind of matrix in it


def check_target_bits(plan: ExportPlan, to: Export, target_bits: float) -> None:
    """Raise ConfigError where no choice of matrices takes these bits, or the format cannot mix them."""
    if plan.scheme_bits != 4:
        raise ConfigError("target_bits", target_bits, "only with scheme q4, some of whose matrices then get 8 bits")
    if not to.mixes_bits:
        raise ConfigError("target_bits", target_bits, "none with this export, whose matrices all have the same bits")
    least = _bits_per_weight(plan, to)
    most = _bits_per_weight(plan.with_8_bits(plan.bits), to)
    if not least <= target_bits <= most:
        lowest, highest = math.ceil(least * 100) / 100, math.floor(most * 100) / 100  # both are allowed themselves
        allowed = (
            f"from {lowest:.2f}, which groups of {plan.group} take in 4 bits, to {highest:.2f}; larger groups take less"
        )
        raise ConfigError("target_bits", target_bits, allowed)


def choose_8_bits(plan: ExportPlan, to: Export, texts: Texts, target_bits: float, progress: Progress) -> list[str]:
    """Choose the tensors that get 8 bits, so that the matrices together take at most `target_bits` bits per weight."""
    walk = LayerWalk(plan.checkpoint, [text[:LENGTH] for text in texts.tokens[:NUM_TEXTS]], set(plan.bits))
    units = {
        (number, kind): [name for name in walk.names(number) if kind_of(name) == kind and plan.bits[name] == 4]
        for number in range(walk.num_layers)
        for kind in dict.fromkeys(map(kind_of, walk.names(number)))
    }
    divergences = _divergences(walk, units, plan.group, to.grid(4, plan.symmetric), progress)
    cost = {
        unit: _num_bytes(plan.with_8_bits(names), to, names) - _num_bytes(plan, to, names)
        for unit, names in units.items()
    }
    spare = 0.5 + (target_bits - _bits_per_weight(plan, to)) * _num_weights(plan) / 8
    chosen: list[str] = []
    for unit in sorted(units, key=lambda unit: -divergences[unit] / max(cost[unit], 1)):
        if cost[unit] <= spare:
            chosen += units[unit]
            spare -= cost[unit]
    return chosen


@torch.no_grad()
def _divergences(
    walk: LayerWalk, units: Mapping[Unit, list[str]], group: int, grid: str, progress: Progress
) -> dict[Unit, float]:
    """Measure the mean KL divergence, in nats per token, of predictions with one unit rounded from the model's."""
    progress.stage(f"measuring what 4 bits cost in each of {len(units)} kinds of matrices, layer by layer")
    progress.advance(0, len(units))

    def rounded(numbers_RK: Tensor) -> Tensor:
        return round_to_nearest(numbers_RK, 4, group, grid).values()[:, : numbers_RK.shape[1]]

    states: dict[Unit, Tensor] = {}
    for number in range(walk.num_layers):
        own = {unit: names for unit, names in units.items() if unit[0] == number}
        states |= walk.through_with(number, states, own, rounded)
        progress.advance(len(states), len(units))
    expected = F.log_softmax(walk.logits(walk.hidden_TD), -1)
    return {unit: _kl_divergence(expected, F.log_softmax(walk.logits(x_TD), -1)) for unit, x_TD in states.items()}


def _kl_divergence(expected_TV: Tensor, found_TV: Tensor) -> float:
    return float(F.kl_div(found_TV, expected_TV, reduction="batchmean", log_target=True))


def _num_weights(plan: ExportPlan) -> int:
    return sum(prod(plan.shapes[name]) for name in plan.bits)


def _num_bytes(plan: ExportPlan, to: Export, names: list[str]) -> int:
    return sum(to.num_bytes(plan, name) for name in names)


def _bits_per_weight(plan: ExportPlan, to: Export) -> float:
    return 8 * _num_bytes(plan, to, list(plan.bits)) / _num_weights(plan)
