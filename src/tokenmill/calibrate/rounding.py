"""Rounds one matrix by the inputs that it has: by how much each input counts, or by GPTQ."""

import logging
import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tokenmill.quant.gptq import NotInvertible, gptq
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored

__all__ = ["ALGORITHMS", "Rounding"]

log = logging.getLogger(__name__)

ALGORITHMS = ("rtn", "importance", "gptq")
COLUMNS = 256  # of the products of inputs, computed at a time: what lies above the diagonal is not


@dataclass
class Rounding:
    """How matrices are rounded, and what each has lost: `error` is the mean square of the change of its outputs over
    the mean square of the outputs, by tensor; `plain_error` the same for rounding to nearest.

    algorithm: "importance" searches scales with squared errors weighted by the mean square of each input; "gptq" also
    has later inputs make good the errors of earlier ones. group, grid: see round_to_nearest.
    """

    algorithm: str
    group: int
    grid: str
    bits: dict[str, int] = field(default_factory=dict)
    error: dict[str, float] = field(default_factory=dict)
    plain_error: dict[str, float] = field(default_factory=dict)
    _last: tuple[Tensor, Tensor] | None = None

    def round(self, name: str, numbers_RK: Tensor, inputs_TK: Tensor | None, bits: int) -> Stored:
        """Without inputs, or with inputs of which nothing can be computed, to nearest; this is said."""
        plain = round_to_nearest(numbers_RK, bits, self.group, self.grid)
        if inputs_TK is None:
            log.warning("%s got none of the calibration tokens: rounded to nearest", name)
            return plain
        hessian_KK = self._hessian(inputs_TK)
        try:
            stored = self._calibrated(numbers_RK, hessian_KK, bits)
        except NotInvertible as error:
            log.warning("%s: %s; rounded to nearest", name, error)
            return plain
        output = _squares(numbers_RK.float(), hessian_KK)
        for errors, found in ((self.error, stored), (self.plain_error, plain)):
            change_RK = found.values()[:, : numbers_RK.shape[1]] - numbers_RK.float()
            errors[name] = _squares(change_RK, hessian_KK) / output if output else 0.0
        # The damping of GPTQ may cost more than it gains where few inputs were seen.
        return stored if self.error[name] <= self.plain_error[name] else plain

    def _calibrated(self, numbers_RK: Tensor, hessian_KK: Tensor, bits: int) -> Stored:
        if self.algorithm == "gptq":
            return gptq(numbers_RK, bits, self.group, self.grid, hessian_KK)
        if not torch.isfinite(hessian_KK.diagonal()).all():
            raise NotInvertible("the inputs of the matrix hold infinite or missing numbers")
        return round_to_nearest(numbers_RK, bits, self.group, self.grid, hessian_KK.diagonal())

    def _hessian(self, inputs_TK: Tensor) -> Tensor:
        """Of the inputs of several matrices, one after the other, this is computed once."""
        if self._last is None or self._last[0] is not inputs_TK:
            self._last = inputs_TK, _products(inputs_TK)
        return self._last[1]


def _products(inputs_TK: Tensor) -> Tensor:
    """Xᵀ X / T. Half of it is computed, and the other half copied."""
    num_inputs = inputs_TK.shape[1]
    found_KK = torch.empty(num_inputs, num_inputs)
    for first in range(0, num_inputs, COLUMNS):
        part_TC = inputs_TK[:, first : first + COLUMNS]
        torch.mm(inputs_TK[:, first:].t(), part_TC, out=found_KK[first:, first : first + COLUMNS])
        found_KK[first : first + COLUMNS, first:] = found_KK[first:, first : first + COLUMNS].t()
    return found_KK.div_(len(inputs_TK))


def _squares(rows_RK: Tensor, hessian_KK: Tensor) -> float:
    """The sum over rows w of w H wᵀ: the mean square of the outputs, times their number."""
    return float(((rows_RK @ hessian_KK) * rows_RK).sum(dtype=torch.float64))
