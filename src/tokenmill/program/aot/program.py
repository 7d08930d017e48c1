"""Program aot: the layers compiled ahead of time, from a package on disk. No compiler is imported.

The parts of the forward that a package has code for are a layer, and what follows the last one. Weights are inputs of a
part, so that one code serves all layers of one kind, and code and weights lie apart. What stands before the first
layer, mostly lookups, runs as plain modules, as do steps that the package has no code for.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tokenmill.cache.step import Step
from tokenmill.model.decoder import Decoder
from tokenmill.program.aot.package import Package, made_for, open_package
from tokenmill.program.compiled.micro_batches import Cache, Call, Inputs, MicroBatch, MicroBatched
from tokenmill.program.forward import ModelParts
from tokenmill.program.parts import Opened
from tokenmill.settings.engine_config import ResolvedConfig


class Aot(MicroBatched):
    """The program that runs the parts of a package, which was checked against model and settings when it was opened."""

    @classmethod
    def open(cls, config: ResolvedConfig, fingerprint: Mapping[str, str], device: torch.device) -> Package:
        return open_package(Path(str(config.aot_package)), made_for(config, fingerprint, device), device)

    def __init__(self, parts: ModelParts) -> None:
        super().__init__(parts)
        assert isinstance(parts.own, Opened), "every load opens them"
        assert parts.own.package is not None, "refused by the config"
        self._package = parts.own.package
        self._layer_weights = [weights_of(layer).values() for layer in self.decoder.layers]
        self._end_weights = weights_of(End(self.decoder)).values()

    def find(self, batch: MicroBatch, step: Step) -> Call | None:
        """Find the code of a micro-batch by its kind; see exporting.KINDS."""
        kind = "chunk" if batch[0].count > 1 else "one" if len(batch) == 1 else "many"
        return partial(self._run_code, kind) if kind in self._package.kinds else None

    def _run_code(self, kind: str, inputs: Inputs, cache: Cache) -> Tensor:
        step, code = inputs.padded(self.block_size), self._package.code
        x_TD, angles, inputs_of = self.decoder.begin(cast("Any", step))  # which has the fields that are read
        places = [step.positions_T, step.slots_T, step.keys_BL, step.states_B, step.saves_S2]
        there = [each for each in places if each is not None]
        own = self.decoder.kept_by, inputs_of, self._layer_weights
        for number, layer_angles, kept_by, more, weights in zip(self._package.layers, angles, *own, strict=True):
            kept = [tensor for layer in kept_by for tensor in cache[layer]]
            given = [x_TD, *(layer_angles or ()), *there, *kept, *more.values(), *weights]
            (x_TD,) = code[f"layer-{kind}-{number}.pt2"].run(given)
        x_RD = x_TD if step.rows_R is None else x_TD[step.rows_R]
        name = f"end-{'one' if len(x_RD) == 1 else 'many'}.pt2"
        if name not in code:
            return self.decoder.end(x_RD)
        (logits_RV,) = code[name].run([x_RD, *self._end_weights])
        return logits_RV


class End(nn.Module):
    """The modules after the last layer: [R, D] → [R, V]."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.join = None if decoder.per_layer is None else decoder.per_layer.join
        self.norm, self.head = decoder.norm, decoder.head or decoder.embedding
        self._decoder = [decoder]  # no submodule: its layers do not belong here

    def forward(self, x_RD: Tensor) -> Tensor:
        return self._decoder[0].end(x_RD)


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """List parameters and buffers by name. Compiled code takes them in this order."""
    return {name: tensor.detach() for name, tensor in (*module.named_parameters(), *module.named_buffers())}
