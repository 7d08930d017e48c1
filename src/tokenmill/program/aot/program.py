"""Program aot: the layers compiled ahead of time, from a package on disk. No compiler is imported.

Steps that the package has no code for run as plain modules.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tokenmill.cache.pool import Pool
from tokenmill.cache.step import Step
from tokenmill.config import EngineConfig
from tokenmill.errors import ConfigError, PackageMismatch
from tokenmill.kernels.attend import Attend
from tokenmill.model.decoder import Decoder
from tokenmill.program.aot.manifest import REMEDY, read_manifest
from tokenmill.program.aot.parts import End, weights_of
from tokenmill.program.compiled.form import Call, Inputs
from tokenmill.program.compiled.pieces import InPieces
from tokenmill.program.compiled.shapes import Piece
from tokenmill.weights.packed.model import PackedCheckpoint

__all__ = ["Aot"]

Loader = torch._C._aoti.AOTIModelPackageLoader


class Aot(InPieces):
    """See Program. The package was checked against the model and the settings before."""

    description = "compiled ahead of time, from a package on disk"

    def __init__(
        self,
        decoder: Decoder,
        pool: Pool,
        attend: Attend,
        packed: PackedCheckpoint | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        if config is None or config.aot_package is None:
            raise ConfigError("aot_package", None, "a directory from `tokenmill compile`")
        facts = read_manifest(Path(config.aot_package))
        self._kinds, self._layer_code = facts["kinds"], facts["layers"]
        self._code = _load(Path(config.aot_package), facts["files"], pool.layers[0].tensors[0].device)
        super().__init__(decoder, pool, attend, packed, config)
        self._layer_weights = [weights_of(layer) for layer in decoder.layers]
        self._end_weights = weights_of(End(decoder))

    def find(self, piece: Piece, step: Step) -> Call | None:
        """By its kind; see exporting.KINDS."""
        del step
        kind = "chunk" if not piece.decodes else "one" if len(piece.spans) == 1 else "many"
        return partial(self._run_code, kind) if kind in self._kinds else None

    def _run_code(self, kind: str, inputs: Inputs, cache: list[Tensor]) -> Tensor:
        """Logits of the wanted rows."""
        step = inputs.padded(self.block_size)
        x_TD, angles = self.decoder.begin(step)
        places = [step.positions_T, step.slots_T, step.keys_BL]
        each = len(cache) // len(self._layer_code)
        for number, code in enumerate(self._layer_code):
            rows = cache[each * number : each * (number + 1)]
            given = [x_TD, *(angles[number] or ()), *places, *rows, *self._layer_weights[number]]
            (x_TD,) = self._code[f"layer-{kind}-{code}.pt2"].run(given)
        x_RD = x_TD if step.rows_R is None else x_TD[step.rows_R]
        name = f"end-{'one' if len(x_RD) == 1 else 'many'}.pt2"
        if name not in self._code:
            return self.decoder.end(x_RD)
        (logits_RV,) = self._code[name].run([x_RD, *self._end_weights])
        return logits_RV


def _load(folder: Path, names: Iterable[str], device: torch.device) -> dict[str, Loader]:
    """The compiled parts by name. PackageMismatch where torch's loader refuses one."""
    on_cpu = device.type == "cpu"
    number = -1 if on_cpu else device.index or 0
    try:  # the fourth argument: calls do not overlap, so on a GPU the loader need not wait for the one before
        return {name: Loader(str(folder / name), "model", not on_cpu, 1, number) for name in names}
    except RuntimeError as error:
        line = (str(error).splitlines() or [""])[0]
        raise PackageMismatch(f"{folder} cannot be loaded: {line}; {REMEDY}") from error
