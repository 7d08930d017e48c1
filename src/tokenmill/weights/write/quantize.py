"""Any checkpoint, rounded and written: the matrices that become codes, and the loss of each kind.

Each matrix is rounded to nearest; embeddings, norms, biases and the routers of experts stay in floating point. The
export (export.py) decides which files are written.
"""

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.model.parameters import matrices_of
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import find_scheme
from tokenmill.quant.stored import Stored
from tokenmill.registry import SCHEMES
from tokenmill.value_reader import check_choice, check_flag
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.codes.layout import GROUPS
from tokenmill.weights.names import match_tensors
from tokenmill.weights.write.convert import weights_of
from tokenmill.weights.write.export import Export, ExportPlan, find_export

Rounder = Callable[[str, Tensor, int], Stored | None]
"""(name, rows [R, K] in any floating type, bits) → the rows as codes; None leaves them to round_to_nearest."""
ROWS = 1024  # whose errors are computed at a time, so that temporaries stay small

BITS = {name: bits for name in sorted(SCHEMES) if (bits := find_scheme(name).rounds_to) is not None}


@dataclass
class Kind:
    """Tensors of one kind: their number, their bytes in floating point and now, the error of rounding."""

    name: str
    stored_as: str
    count: int = 0
    num_weights: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    squared_error: float = 0.0
    squared_norm: float = 0.0
    names: list[str] = field(default_factory=list)

    @property
    def error(self) -> float | None:
        """Root of the mean squared error, relative to the root mean square of the values; None without rounding."""
        if self.stored_as not in BITS:
            return None
        return math.sqrt(self.squared_error / self.squared_norm) if self.squared_norm else 0.0

    def add(self, name: str, numbers_RK: Tensor, stored: Stored) -> None:
        """Add the error of rounding one matrix. CheckpointError where it has numbers that cannot be rounded."""
        for first in range(0, len(numbers_RK), ROWS):
            rows_RK = numbers_RK[first : first + ROWS].float()
            values_RK = stored.rows(range(first, first + ROWS)).values()
            error = (values_RK[:, : rows_RK.shape[1]] - rows_RK).square_().sum(dtype=torch.float64).item()
            if not math.isfinite(error):
                raise CheckpointError(f"{name} cannot be rounded: it holds infinite, missing or far too large numbers")
            self.squared_error += error
            self.squared_norm += rows_RK.square().sum(dtype=torch.float64).item()


def quantize(
    checkpoint: Checkpoint,
    out: Path,
    progress: Progress,
    scheme: str = "q4",
    group: int = 32,
    head: str | None = None,
    rounder: Rounder | None = None,
    export: str = "tokenmill",
    symmetric: bool = False,
    eight_bits: Collection[str] = (),
) -> dict[str, Kind]:
    """Write config, codes, floating-point tensors and tokenizer to `out`, which must be new.

    Returns the kinds of tensors that were written, by the kind's name ("… in q8" for eight_bits).
    scheme: "q4", "q8", or "none" for an export that also converts. group: inputs that share a scale. head: the scheme
    of a head that is not the embedding, "q4", "q8" or "none"; None for the export's own choice. rounder: rounds a
    matrix, on the grid that the export has for so many bits; by default to nearest, with a search for scales. export: a
    key of EXPORTS. symmetric: codes of 4 bits without a minimum or zero of their own, which exports alone have.
    eight_bits: tensors that get 8 bits in a scheme of 4. Raises CapacityError when the disk has no space and
    CheckpointError when writing fails or a matrix cannot be rounded; then nothing is left behind.
    """
    plan, to = plan_quantization(checkpoint, out, scheme, group, head, export, symmetric)
    plan = plan.with_8_bits(eight_bits)
    to.check(plan)
    kinds: dict[str, Kind] = {}
    for name, shape in plan.shapes.items():
        kind = kinds.setdefault(_key(plan, name), Kind(*_title(plan, name)))
        kind.names.append(name)
        kind.count, kind.bytes_after = kind.count + 1, kind.bytes_after + to.num_bytes(plan, name)
        kind.num_weights += prod(shape)
        kind.bytes_before += prod(shape) * getattr(torch, plan.model.dtype).itemsize

    def rounded(name: str, rows_RK: Tensor) -> Stored:
        bits = plan.bits[name]
        stored = None if rounder is None else rounder(name, rows_RK, bits)
        if stored is None:
            stored = round_to_nearest(rows_RK, bits, group, to.grid(bits, symmetric))
        kinds[_key(plan, name)].add(name, rows_RK, stored)
        return stored

    to.write(plan, out, rounded, progress, f"rounding to {scheme}, groups of {group}")
    return kinds


def plan_quantization(
    checkpoint: Checkpoint,
    out: Path,
    scheme: str = "q4",
    group: int = 32,
    head: str | None = None,
    export: str = "tokenmill",
    symmetric: bool = False,
) -> tuple[ExportPlan, Export]:
    """Plan the files of `quantize`, and find the export that writes them; ConfigError where it cannot. No tensor is
    read.
    """
    to = find_export(export)
    check_choice("scheme", scheme, (*BITS, "none") if to.is_for_floats else BITS)
    check_choice("group", group, GROUPS)
    if head is not None:
        check_choice("head", head, (*BITS, "none"))
    check_flag("symmetric", symmetric)
    to.check_output(out)
    checkpoint = to.lay_out(checkpoint)
    model = read_config(checkpoint.config)
    # A router is small, and its choices are all or nothing.
    matrices = matrices_of(describe(model)).items()
    schemes = {f"{path}.weight": scheme for path, matrix in matrices if matrix.role != "router"}
    schemes["head.weight"] = head or ("none" if scheme == "none" else to.default_head)
    if model.tie_embeddings:
        if head in BITS and not to.codes_embedding:
            reason = "only for a head of its own; this model's is its embedding, which is not rounded"
            raise ConfigError("head", head, reason)
        schemes["embedding.weight"] = head or "none"
    targets, shapes = match_tensors(checkpoint, model), weights_of(checkpoint)
    bits = {
        name: number
        for name, target in targets.items()
        if (number := BITS.get(schemes.get(target.parameter, "none"))) and not to.leaves(number, shapes[name])
    }
    plan = ExportPlan(checkpoint, model, shapes, bits, targets, BITS.get(scheme, 0), group, symmetric)
    to.check(plan)
    return plan, to


def _key(plan: ExportPlan, name: str) -> str:
    """Make the key of a tensor's kind. Matrices of one name may have 4 bits or 8, which are two kinds."""
    title, stored_as = _title(plan, name)
    own = plan.bits.get(name, plan.scheme_bits) == plan.scheme_bits or plan.targets[name].parameter == "head.weight"
    return title if own else f"{title} in {stored_as}"


def _title(plan: ExportPlan, name: str) -> tuple[str, str]:
    """Name the kind of a tensor, and the scheme or dtype in which it is stored."""
    if name not in plan.bits:
        return "the rest", plan.model.dtype
    return kind_of(name), f"q{plan.bits[name]}"


def kind_of(name: str) -> str:
    """Return the kind of a tensor: its name without its layer, expert or head."""
    return re.sub(r"^.*\.\d+\.|\[[kv]?\d+\]$", "", name).removesuffix(".weight")
