"""AOT packages written: the parts of the forward as functions of their weights, through torch.export and AOTInductor.

Lengths, slots and numbers of sequences stay dynamic. A step of one sequence, a step of several, and a chunk of one
sequence are compiled separately.
"""

import subprocess
import warnings
from collections.abc import Hashable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._inductor import aoti_compile_and_package, cpp_builder
from torch._inductor import config as inductor
from torch.export import Dim, export
from torch.func import functional_call

from tokenmill.cache.padded_step import PaddedStep, kept_over
from tokenmill.cache.pool import LayerKept, LayerStates, Pool
from tokenmill.errors import ConfigError, PackageMismatch
from tokenmill.kernels.attend.kernel import Attend
from tokenmill.model.decoder import Decoder, Layer
from tokenmill.model.features import states_of
from tokenmill.model.rope import Angles
from tokenmill.program.aot.manifest import check_folder, write_manifest
from tokenmill.program.aot.program import End, weights_of
from tokenmill.program.compiled.program import check_backend
from tokenmill.quant.quantized import QuantizedLinear

KINDS = {"decode": ("one", "many"), "prefill": ("chunk",), "both": ("one", "many", "chunk")}
"""The kinds of steps to compile, by compile_phases: of one sequence, of several, or a chunk of one."""

EXAMPLE = {"one": 1, "many": 3, "chunk": 24}
"""Tokens of the example step with which a kind is compiled."""
KEYS = 320  # positions of the example step
SAVES = 5  # states that an example chunk leaves; no size of it is like another

Places = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""positions_T, slots_T, keys_BL, states_B and saves_S2 of a PaddedStep."""


class OneLayer(nn.Module):
    """A layer as a function of a padded step and of its cache."""

    def __init__(self, layer: nn.Module, kept: Sequence[LayerKept], attend: Attend) -> None:
        super().__init__()
        self.layer, self._kept, self._attend = layer, kept, attend

    def forward(
        self, x_TD: Tensor, angles: Angles | None, places: Places, cache: list[list[Tensor]], more: dict[str, Tensor]
    ) -> Tensor:
        """Run the layer, [T, D] → [T, D], and write what each of its mixers keeps. more: its inputs by name."""
        positions_T, slots_T, keys_BL, states_B, saves_S2 = places
        step = PaddedStep(positions_T, positions_T, slots_T, keys_BL, None, 0, states_B, saves_S2)
        kept = [kept_over(own, *tensors) for own, tensors in zip(self._kept, cache, strict=True)]
        out_TD: Tensor = self.layer(x_TD, angles, step, self._attend, *kept, **more)
        return out_TD


class CompilablePart(nn.Module):
    """A module as a function of its inputs and of its weights, as weights_of gives them."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = [module]  # no submodule: its weights are inputs

    def forward(self, inputs: tuple[object, ...], weights: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(self._module[0], weights, inputs)
        return out


class ExportedPart(NamedTuple):
    """A part of the forward, the example inputs for compiling it, and the dynamic ones among their sizes."""

    name: str
    module: nn.Module
    inputs: tuple[object, ...]
    dynamic_sizes: tuple[object, ...]


def write_package(
    folder: Path, decoder: Decoder, pool: Pool, attend: Attend, phases: str, facts: Mapping[str, Any], progress: Any
) -> int:
    """Compile all parts and put the directory in place when it is complete; return the size of the parts in bytes.

    attend: the kernel for padded steps. `progress` has stage(text) and advance(done, total). PackageMismatch if the
    directory cannot be written.
    """
    check_folder(folder)
    check_backend("inductor")
    try:
        with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
            new, old = Path(temporary) / "new", Path(temporary) / "old"
            new.mkdir()
            layers, exports = _exports(decoder, pool, attend, KINDS[phases])
            for number, each in enumerate(exports):
                progress.stage(f"compiling {each.name}, {number + 1} of {len(exports)}")
                progress.advance(number, len(exports))
                compile_part(each, new / f"{each.name}.pt2")
            told = {"compiler": _compiler(), "kinds": KINDS[phases], "layers": layers}
            num_bytes = write_manifest(new, {**facts, **told})
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
    except OSError as error:
        raise PackageMismatch(f"{folder} cannot be written: {error.strerror}") from error
    progress.advance(len(exports), len(exports))
    return num_bytes


def _exports(
    decoder: Decoder, pool: Pool, attend: Attend, kinds: tuple[str, ...]
) -> tuple[list[int], list[ExportedPart]]:
    """Find the number of each layer's code, and the parts to compile."""
    known: dict[object, int] = {}
    layers = [known.setdefault(_kind_of(layer), len(known)) for layer in decoder.layers if isinstance(layer, Layer)]
    exports = []
    for kind in kinds:
        step = _example_step(decoder, kind)
        begun = decoder.begin(cast("Any", step))  # which has the fields that are read
        for number in range(len(known)):
            index = layers.index(number)
            kept = [pool.layers[own] for own in decoder.kept_by[index]]
            layer = OneLayer(decoder.layers[index], kept, attend)
            inputs = _layer_inputs(step, begun, index, kept, kind)
            exports.append(ExportedPart(f"layer-{kind}-{number}", layer, *inputs))
        if kind != "chunk":
            rows = {0: Dim("rows", min=2)} if kind == "many" else None
            exports.append(ExportedPart(f"end-{kind}", End(decoder), begun[:1], (rows,)))
    return layers, exports


def _kind_of(layer: Layer) -> Hashable:
    """Make the key of a layer's code: equal if the descriptions are equal, and the way in which tensors are stored."""
    bits = [[part.bits for part in module.parts()] for module in layer.modules() if isinstance(module, QuantizedLinear)]
    stored = [(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in weights_of(layer).items()]
    return layer.description, str((bits, stored))


def _example_step(decoder: Decoder, kind: str) -> PaddedStep:
    count = EXAMPLE[kind]
    positions_T = torch.arange(count, device=decoder.embedding.weight.device)
    keys_BL = positions_T.new_zeros(count if kind == "many" else 1, KEYS)
    places = torch.zeros_like(positions_T), positions_T, positions_T.clone(), keys_BL
    states = saves = None
    if states_of(decoder.description):
        states, saves = keys_BL.new_zeros(len(keys_BL)), positions_T.new_ones(SAVES if kind == "chunk" else count, 2)
    return PaddedStep(*places, None, count, states, saves)


def _layer_inputs(
    step: PaddedStep, begun: tuple[Tensor, Any, Any], index: int, kept: Sequence[LayerKept], kind: str
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Make example inputs of OneLayer, and say which of their sizes are dynamic. begun: what Decoder.begin made."""
    x_TD, (angles, more) = begun[0], (each[index] for each in begun[1:])
    tokens = None if kind == "one" else {0: Dim("tokens", min=2)}
    length, several = Dim("length", min=2), tokens if kind == "many" else None
    keys = {1: length} if several is None else {**several, 1: length}
    saved = None if step.states_B is None else {0: Dim("saves", min=2)} if kind == "chunk" else several
    slots = [{0: Dim("states" if isinstance(own, LayerStates) else "slots", min=2)} for own in kept]
    sizes = [[slot] * len(own.tensors) for slot, own in zip(slots, kept, strict=True)]
    places = (step.positions_T, step.slots_T, step.keys_BL, step.states_B, step.saves_S2)
    inputs = (x_TD, angles, places, [list(own.tensors) for own in kept], more)
    of_places = (tokens, tokens, keys, None if step.states_B is None else several, saved)
    return inputs, (tokens, None if angles is None else (tokens, tokens), of_places, sizes, dict.fromkeys(more, tokens))


@torch.no_grad()
def compile_part(part: ExportedPart, path: Path) -> None:
    weights = weights_of(part.module)
    code = BytesIO()  # torch's own writer of files ends the process where a disk is full
    sizes = {"inputs": part.dynamic_sizes, "weights": dict.fromkeys(weights)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated", FutureWarning)  # torch's own
        program = export(CompilablePart(part.module), (part.inputs, weights), dynamic_shapes=sizes)
        try:
            # Otherwise the code would always use as many threads as the machine that compiled it has.
            with inductor.patch({"cpp.dynamic_threads": True}):
                aoti_compile_and_package(program, package_path=code)
        except RuntimeError as error:
            line = (str(error).splitlines() or [""])[0]
            raise ConfigError("program", "compiled", f"its compiler failed for {part.name}: {line}") from error
    path.write_bytes(code.getvalue())


def _compiler() -> str:
    """Ask for name and version of the compiler, for `tokenmill info` alone: running a package needs none."""
    asked = subprocess.run(  # noqa: S603  (the compiler that torch found)
        [cpp_builder.get_cpp_compiler(), "--version"], capture_output=True, text=True, check=True
    )
    return asked.stdout.partition("\n")[0]
