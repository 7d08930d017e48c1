"""Rounds one matrix for the inputs that it has in calibration texts: weighted by their mean squares, or by GPTQ."""

import logging
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError
from tokenmill.kernels.threads import over_rows
from tokenmill.quant.gptq import Compensation, NotInvertible, compensation, gptq
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.stored import Stored

log = logging.getLogger(__name__)

ALGORITHMS = ("rtn", "importance", "gptq")
COLUMNS = 256  # of Xᵀ X, computed at a time, from the diagonal down: the matrix is symmetric


@dataclass
class Rounding:
    """The way in which matrices are rounded, and what each has lost.

    algorithm: "importance" searches scales with squared errors weighted by the mean square of each input; "gptq": see
    quant/gptq.py. group, grid: see round_to_nearest. changes: for each tensor the mean square of the error of its
    outputs over the mean square of the outputs, rounded to nearest and as this algorithm has rounded it.
    """

    algorithm: str
    group: int
    grid: str
    changes: dict[str, tuple[float, float]] = field(default_factory=dict)
    _last: "_Seen | None" = None

    def round(self, name: str, numbers_RK: Tensor, inputs_TK: Tensor | None, bits: int) -> Stored:
        """Round a matrix to codes. Without inputs, or with inputs that hold NaN or infinity, it is rounded to nearest,
        which is logged as a warning.
        """
        numbers_RK = numbers_RK.float()
        if not torch.isfinite(numbers_RK).all():
            raise CheckpointError(f"{name} cannot be rounded: it holds infinite or missing numbers")
        if inputs_TK is None:
            return self._to_nearest(name, numbers_RK, bits, "no calibration token reaches it")
        if self._last is None or self._last.inputs_TK is not inputs_TK:  # once for all matrices with these inputs
            self._last = _Seen(inputs_TK)
        try:
            stored = self._calibrated(numbers_RK, self._last, bits)
        except NotInvertible as error:
            return self._to_nearest(name, numbers_RK, bits, str(error))
        plain = round_to_nearest(numbers_RK, bits, self.group, self.grid, quick=self.grid == "minimum")
        before, after = (self._last.change(each, numbers_RK) for each in (plain, stored))
        if after > before:
            return self._to_nearest(name, numbers_RK, bits, f"{self.algorithm} would change its outputs more")
        self.changes[name] = before, after
        return stored

    def _to_nearest(self, name: str, numbers_RK: Tensor, bits: int, why: str) -> Stored:
        log.warning("%s is rounded to nearest: %s", name, why)
        return round_to_nearest(numbers_RK, bits, self.group, self.grid)

    def _calibrated(self, numbers_RK: Tensor, seen: "_Seen", bits: int) -> Stored:
        if not torch.isfinite(seen.products_KK).all():
            raise NotInvertible("its inputs hold infinite or missing numbers")
        if self.algorithm == "importance":
            return round_to_nearest(numbers_RK, bits, self.group, self.grid, seen.products_KK.diagonal())
        how = partial(gptq, bits=bits, group=self.group, grid=self.grid, compensated=seen.compensation(self.group))
        return Stored.joined(over_rows(how, numbers_RK))


class _Seen:
    """The inputs of one matrix or of several, and what is computed of them."""

    def __init__(self, inputs_TK: Tensor) -> None:
        self.inputs_TK, self.products_KK = inputs_TK, _products(inputs_TK)
        self._compensation: Compensation | None = None

    def compensation(self, group: int) -> Compensation:
        if self._compensation is None:
            self._compensation = compensation(self.products_KK, group)
        return self._compensation

    def change(self, stored: Stored, numbers_RK: Tensor) -> float:
        outputs = self._squares(numbers_RK)
        return self._squares(stored.values()[:, : numbers_RK.shape[1]] - numbers_RK) / outputs if outputs else 0.0

    def _squares(self, rows_RK: Tensor) -> float:
        """Sum w H wᵀ over rows w: the mean square of the outputs, times their number."""
        return max(0.0, float(((rows_RK @ self.products_KK) * rows_RK).sum(dtype=torch.float64)))


def _products(inputs_TK: Tensor) -> Tensor:
    """Compute Xᵀ X / T. Half of it is computed, and the other half copied."""
    num_inputs = inputs_TK.shape[1]
    found_KK = torch.empty(num_inputs, num_inputs)
    for first in range(0, num_inputs, COLUMNS):
        part_LC = torch.mm(inputs_TK[:, first:].t(), inputs_TK[:, first : first + COLUMNS])
        found_KK[first:, first : first + COLUMNS] = part_LC
        found_KK[first : first + COLUMNS, first:] = part_LC.t()
    return found_KK.div_(len(inputs_TK))
