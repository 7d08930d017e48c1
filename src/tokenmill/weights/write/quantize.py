"""Any checkpoint, rounded and written as a directory whose matrices are codes.

Each matrix is read, rounded to nearest and written before the next one is read, so memory holds one of them.
Embeddings, norms, biases and the routers of experts stay in floating point. The directory appears under its name only
when it is complete. This lives here, not in quant, because it reads checkpoints and writes files; weights/codes.py has
the layout.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.download import Progress
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import find_family, read_config
from tokenmill.quant.dense import Dense
from tokenmill.quant.rtn import ROWS, round_to_nearest
from tokenmill.quant.schemes import SCHEMES, Matrix, find_scheme
from tokenmill.weights.checkpoint import Checkpoint
from tokenmill.weights.codes import GROUPS, Layout, pack, part_shapes
from tokenmill.weights.load import empty_decoder
from tokenmill.weights.names import Target, expand, is_ignored
from tokenmill.weights.write.convert import SHARD_BYTES, write_settings
from tokenmill.weights.write.shards import Unit, check_new, new_directory, write_shards

__all__ = ["Kind", "Report", "quantize"]

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


@dataclass
class Report:
    """What was written. num_bytes: of all files."""

    path: Path
    num_bytes: int = 0
    kinds: dict[str, Kind] = field(default_factory=dict)

    def kind(self, name: str, stored_as: str) -> Kind:
        """The one of that name."""
        return self.kinds.setdefault(name, Kind(name, stored_as))


def quantize(
    checkpoint: Checkpoint,
    out_dir: Path,
    progress: Progress,
    scheme: str = "q4",
    group: int = 32,
    head: str | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> Report:
    """Write config, codes, floating-point tensors and tokenizer to `out_dir`, which must be new or empty.

    scheme: "q4" or "q8". group: inputs that share a scale. head: of a head that is not the embedding, "q4", "q8" (also
    None) or "none". Raises CapacityError when the disk has no space and CheckpointError when writing fails or a matrix
    cannot be rounded; then nothing is left behind.
    """
    model = read_config(checkpoint.config)
    _check(out_dir, scheme, group, head, model)
    report = Report(out_dir)
    work = _Work(checkpoint, model, report, progress, BITS[scheme], group, BITS.get(head or "q8"))
    units = work.units()
    with new_directory(out_dir, sum(unit.num_bytes for unit in units), "scheme") as directory:
        progress.stage(f"rounding to {scheme}, groups of {group}")
        write_shards(units, directory, shard_bytes)
        write_settings(checkpoint, directory, model.dtype, progress)
        _write_config(checkpoint, directory, model, BITS[scheme], group)
        report.num_bytes = sum(file.stat().st_size for file in directory.iterdir())
    return report


def _check(out_dir: Path, scheme: str, group: int, head: str | None, model: ModelConfig) -> None:
    if scheme not in BITS:
        raise ConfigError("scheme", scheme, f"use one of {', '.join(BITS)}")
    if group not in GROUPS:
        raise ConfigError("group", group, f"use one of {', '.join(map(str, GROUPS))}")
    if head not in (None, "none", *BITS):
        raise ConfigError("head", head, f"use one of {', '.join(BITS)}, none")
    if head in BITS and model.tie_embeddings:
        raise ConfigError(
            "head", head, "only for a head of its own; this model's is its embedding, which is not rounded"
        )
    check_new(out_dir)


@dataclass
class _Work:
    """What becomes of each tensor."""

    checkpoint: Checkpoint
    model: ModelConfig
    report: Report
    progress: Progress
    bits: int
    group: int
    head_bits: int | None
    done: int = 0
    total: int = 0

    def units(self) -> list[Unit]:
        """One for each tensor of the checkpoint, in its order; buffers that are no weights are left out."""
        family, matrices = find_family(self.checkpoint.config), self._matrices()
        units = []
        for name, shape in self.checkpoint.shapes.items():
            if is_ignored(family, name.removeprefix(family.prefix)):
                continue
            target = matrices.get(name)
            bits = self.head_bits if target is not None and target.parameter == "head.weight" else self.bits
            if target is None or bits is None or len(shape) != 2 or (bits == 4 and shape[1] % 2):
                units.append(self._plain(name, shape))
            else:
                units.append(self._rounded(name, shape, bits))
        self.total = len(units)
        return units

    def _matrices(self) -> dict[str, Target]:
        """The checkpoint's name of each matrix that is multiplied with → where it goes."""
        decoder, family = empty_decoder(self.model, Dense(), 1), find_family(self.checkpoint.config)
        paths = {path for path, module in decoder.named_modules() if isinstance(module, Matrix)}
        targets = expand(family, self.model, dict(decoder.named_parameters()))
        found = {}
        for name in self.checkpoint.shapes:
            target = targets.get(name.removeprefix(family.prefix))
            path, _, last = ("", "", "") if target is None else target.parameter.rpartition(".")
            # A router is small, and its choices are all or nothing.
            if target is None or path not in paths or last != "weight" or path.endswith(".router"):
                continue
            if target.transform == "transpose":
                which = f"{self.model.family} at {self.checkpoint.path}"
                raise ConfigError(
                    "model", which, "a family whose files store matrices [out, in]; this one's are [in, out]"
                )
            found[name] = target
        return found

    def _plain(self, name: str, shape: tuple[int, ...]) -> Unit:
        dtype: torch.dtype = getattr(torch, self.model.dtype)
        kind = self.report.kind("the rest", self.model.dtype)
        num_bytes = prod(shape) * dtype.itemsize
        kind.count, kind.bytes_before = kind.count + 1, kind.bytes_before + num_bytes
        kind.bytes_after += num_bytes

        def make() -> Mapping[str, Tensor]:
            return {name: self._read(name).to(dtype)}

        return Unit({name: (dtype, shape)}, make)

    def _rounded(self, name: str, shape: tuple[int, ...], bits: int) -> Unit:
        base = name.removesuffix(".weight")
        shapes = part_shapes(Layout("tokenmill", bits, self.group), shape[0], shape[1], minimums=bits == 4)
        types = {part: torch.uint8 if part == "codes" else torch.float16 for part in shapes}
        kind = self.report.kind(re.sub(r"^.*\.\d+\.", "", base), f"q{bits}")

        def make() -> Mapping[str, Tensor]:
            return {f"{base}.{part}": tensor for part, tensor in self._round(name, bits, kind).items()}

        unit = Unit({f"{base}.{part}": (types[part], shapes[part]) for part in shapes}, make)
        kind.count, kind.bytes_after = kind.count + 1, kind.bytes_after + unit.num_bytes
        kind.bytes_before += prod(shape) * getattr(torch, self.model.dtype).itemsize
        return unit

    def _read(self, name: str) -> Tensor:
        tensor = self.checkpoint.read(name)
        if not tensor.is_floating_point():
            raise CheckpointError(f"{name} holds {tensor.dtype}: quantised exports of this kind cannot be converted")
        self.progress.advance(self.done, self.total)
        self.done += 1
        return tensor

    def _round(self, name: str, bits: int, kind: Kind) -> dict[str, Tensor]:
        """Our own parts of one matrix, some rows at a time; adds to the kind's errors."""
        numbers_RK = self._read(name)
        pieces = []
        for given_RK in torch.split(numbers_RK, ROWS):
            rows_RK = given_RK.float()
            stored = round_to_nearest(rows_RK, bits, self.group)
            error = (stored.values()[:, : rows_RK.shape[1]] - rows_RK).square_().sum(dtype=torch.float64).item()
            if not math.isfinite(error):
                raise CheckpointError(f"{name} cannot be rounded: it holds infinite, missing or far too large numbers")
            kind.squared_error += error
            kind.squared_norm += rows_RK.square().sum(dtype=torch.float64).item()
            pieces.append(pack(stored, rows_RK.shape[1], self.group))
        return {part: torch.cat([piece[part] for piece in pieces]) for part in pieces[0]}


def _write_config(checkpoint: Checkpoint, path: Path, model: ModelConfig, bits: int, group: int) -> None:
    config = {key: value for key, value in checkpoint.config.items() if key not in ("dtype", "stored_as_codes")}
    config["torch_dtype"] = model.dtype
    config["quantization_config"] = {"quant_method": "tokenmill", "bits": bits, "group_size": group, "version": 1}
    (path / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
