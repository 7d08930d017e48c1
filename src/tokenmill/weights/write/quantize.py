"""Any checkpoint, rounded and written as a directory whose matrices are codes.

Each matrix is rounded to nearest; embeddings, norms, biases and the routers of experts stay in floating point.
weights/quantized.py has the layout.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.checks import check_choice
from tokenmill.config import FUSIBLE
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Progress
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import SCHEMES, Matrix, Scheme, find_scheme
from tokenmill.quant.stored import Stored
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.load import empty_decoder, match_tensors
from tokenmill.weights.quantized import GROUPS, Layout, pack, part_shapes
from tokenmill.weights.write.convert import Unit, plain_unit, weights_of, write_directory

__all__ = ["Kind", "Rounder", "quantize"]

Rounder = Callable[[str, Tensor, int], Stored]
"""Rounds the matrix of that name, [R, K] in any floating type, to so many bits."""
ROWS = 1024  # whose errors are computed at a time, so that temporaries stay small

BITS = {name: bits for name in sorted(SCHEMES) if (bits := find_scheme(name).rounds_to) is not None}


@dataclass
class Kind:
    """Tensors of one kind: how many, their bytes in floating point and now, what rounding lost."""

    name: str
    stored_as: str
    count: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    squared_error: float = 0.0
    squared_norm: float = 0.0

    @property
    def error(self) -> float | None:
        """Root of the mean squared error over that of the values; None where nothing was rounded."""
        if self.stored_as not in BITS:
            return None
        return math.sqrt(self.squared_error / self.squared_norm) if self.squared_norm else 0.0


def quantize(
    checkpoint: Checkpoint,
    out_dir: Path,
    progress: Progress,
    scheme: str = "q4",
    group: int = 32,
    head: str | None = None,
    rounder: Rounder | None = None,
) -> dict[str, Kind]:
    """Write config, codes, floating-point tensors and tokenizer to `out_dir`, which must be new or empty.

    Returns what was written of each kind of tensor, by the kind's name.
    scheme: "q4" or "q8". group: inputs that share a scale. head: of a head that is not the embedding, "q4", "q8" (also
    None) or "none". rounder: rounds a matrix; by default to nearest, with a search for scales. Raises CapacityError
    when the disk has no space and CheckpointError when writing fails or a matrix cannot be rounded; then nothing is
    left behind.
    """
    model = read_config(checkpoint.config)
    check_choice("scheme", scheme, BITS)
    check_choice("group", group, GROUPS)
    if head is not None:
        check_choice("head", head, (*BITS, "none"))
    if head in BITS and model.tie_embeddings:
        reason = "only for a head of its own; this model's is its embedding, which is not rounded"
        raise ConfigError("head", head, reason)
    rounder = rounder or (lambda name, numbers_RK, bits: round_to_nearest(numbers_RK, bits, group))
    matrices, units = _matrices(checkpoint, model), []
    kinds: dict[str, Kind] = {}
    for name, shape in weights_of(checkpoint).items():
        bits = BITS.get(head or "q8") if matrices.get(name) == "head.weight" else BITS[scheme]
        if name not in matrices or bits is None or len(shape) != 2 or (bits == 4 and shape[1] % 2):
            kind = kinds.setdefault("the rest", Kind("the rest", model.dtype))
            unit = plain_unit(name, shape, model.dtype)
        else:
            title = re.sub(r"^.*\.\d+\.", "", name.removesuffix(".weight"))
            kind = kinds.setdefault(title, Kind(title, f"q{bits}"))
            unit = _rounded_unit(name, shape, bits, group, kind, rounder)
        kind.count, kind.bytes_after = kind.count + 1, kind.bytes_after + unit.num_bytes()
        kind.bytes_before += prod(shape) * getattr(torch, model.dtype).itemsize
        units.append(unit)
    settings = {"quant_method": "tokenmill", "bits": BITS[scheme], "group_size": group, "version": 1}
    config = {"torch_dtype": model.dtype, "quantization_config": settings}
    write_directory(checkpoint, out_dir, units, config, progress, f"rounding to {scheme}, groups of {group}")
    return kinds


def _matrices(checkpoint: Checkpoint, model: ModelConfig) -> dict[str, str]:
    """The checkpoint's name of each matrix that tokens are multiplied with → the parameter that it fills."""
    decoder = empty_decoder(model, Scheme(), model.context, FUSIBLE)
    # A router is small, and its choices are all or nothing.
    paths = {path for path, module in decoder.named_modules() if isinstance(module, Matrix)}
    weights = {f"{path}.weight" for path in paths if not path.endswith(".router")}
    targets = match_tensors(checkpoint, decoder)
    if any(target.transform == "transpose" and target.parameter in weights for target in targets.values()):
        allowed = "a family whose files store matrices [out, in]; this one's are [in, out]"
        raise ConfigError("model", f"{model.family} at {checkpoint.path}", allowed)
    return {name: target.parameter for name, target in targets.items() if target.parameter in weights}


def _rounded_unit(name: str, shape: tuple[int, ...], bits: int, group: int, kind: Kind, rounder: Rounder) -> Unit:
    """The parts of one matrix, rounded; what that loses is added to its kind."""
    base = name.removesuffix(".weight")

    def make(numbers_RK: Tensor) -> dict[str, Tensor]:
        stored = rounder(name, numbers_RK, bits)
        for first in range(0, shape[0], ROWS):
            rows_RK = numbers_RK[first : first + ROWS].float()
            values_RK = stored.map(partial(_rows, first)).values()[:, : shape[1]]
            error = (values_RK - rows_RK).square_().sum(dtype=torch.float64).item()
            if not math.isfinite(error):
                raise CheckpointError(f"{name} cannot be rounded: it holds infinite, missing or far too large numbers")
            kind.squared_error += error
            kind.squared_norm += rows_RK.square().sum(dtype=torch.float64).item()
        return {f"{base}.{part}": tensor for part, tensor in pack(stored, shape[1], group).items()}

    shapes = part_shapes(Layout("tokenmill", bits, group), shape[0], shape[1], minimums=bits == 4)
    types = {part: torch.uint8 if part == "codes" else torch.float16 for part in shapes}
    return Unit(name, {f"{base}.{part}": (types[part], shapes[part]) for part in shapes}, make)


def _rows(first: int, tensor: Tensor) -> Tensor:
    return tensor[first : first + ROWS]
