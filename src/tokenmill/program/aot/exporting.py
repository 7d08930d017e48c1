"""AOT packages written: each part of the forward through torch.export and AOTInductor.

Lengths, slots and numbers of sequences stay dynamic. A step of one sequence, a step of several, and a chunk of one
sequence are compiled separately.
"""

import shutil
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor import aoti_compile_and_package, cpp_builder
from torch._inductor import config as inductor
from torch.export import Dim, export

from tokenmill.cache.pool import Pool
from tokenmill.errors import ConfigError, PackageMismatch
from tokenmill.kernels.attend import Attend
from tokenmill.memory.atomic_file import beside
from tokenmill.model.decoder import Decoder, Layer
from tokenmill.program.aot.manifest import MANIFEST, digest, seal_manifest
from tokenmill.program.aot.parts import End, OneLayer, Part, kind_of, weights_of
from tokenmill.program.compiled.compiling import check_backend

__all__ = ["KINDS", "write_package"]

KINDS = {"decode": ("one", "many"), "prefill": ("chunk",), "both": ("one", "many", "chunk")}
"""The kinds of steps to compile, by compile_phases: of one sequence, of several, or a chunk of one."""

EXAMPLE = {"one": 1, "many": 3, "chunk": 24}
"""Tokens in the example step that a kind is compiled with."""
KEYS = 320

SETTINGS = {"cpp.dynamic_threads": True}
"""Without it the code would always use as many threads as the machine that compiled it has."""


@dataclass(frozen=True)
class _Package:
    """A part, and the example inputs that it is compiled with."""

    name: str
    part: Part
    inputs: tuple[object, ...]
    dynamic_sizes: tuple[object, ...]
    weights: list[Tensor]


def write_package(
    folder: Path, decoder: Decoder, pool: Pool, attend: Attend, phases: str, facts: Mapping[str, Any], progress: Any
) -> int:
    """Compile all parts and put the directory in place when it is complete; its size in bytes.

    PackageMismatch if it cannot be written.

    attend: the kernel for padded steps. `progress` has stage(text) and advance(done, total).
    """
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise PackageMismatch(f"{folder} is there and is no AOT package: it is not overwritten")
    check_backend("inductor")
    temporary = beside(folder)
    try:
        temporary.mkdir()
        layers, packages = _packages(decoder, pool, attend, KINDS[phases])
        for number, package in enumerate(packages):
            progress.stage(f"compiling {package.name}, {number + 1} of {len(packages)}")
            progress.advance(number, len(packages))
            _compile(package, temporary / f"{package.name}.pt2")
        files = {path.name: digest(path) for path in sorted(temporary.iterdir())}
        num_bytes = sum((temporary / name).stat().st_size for name in files)
        told = {"compiler": _compiler(), "num_bytes": num_bytes}
        document = seal_manifest({**facts, **told, "kinds": KINDS[phases], "layers": layers, "files": files})
        (temporary / MANIFEST).write_text(document, encoding="utf-8")
        _put(temporary, folder)
    except OSError as error:
        raise PackageMismatch(f"{folder} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    progress.advance(len(packages), len(packages))
    return num_bytes


def _put(temporary: Path, folder: Path) -> None:
    """Rename the new directory; an older one of that name stays until then, and returns if the rename fails."""
    if folder.exists():
        old = beside(folder)
        folder.rename(old)
        try:
            temporary.rename(folder)
        except BaseException:
            old.rename(folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(folder)


def _packages(decoder: Decoder, pool: Pool, attend: Attend, kinds: tuple[str, ...]) -> tuple[list[int], list[_Package]]:
    """For each layer the number of its code, and what to compile."""
    known: dict[object, int] = {}
    layers = [known.setdefault(kind_of(layer), len(known)) for layer in decoder.layers if isinstance(layer, Layer)]
    packages = []
    for kind in kinds:
        for number in range(len(known)):
            index = layers.index(number)
            layer = OneLayer(decoder.layers[index], pool.layers[index], attend)
            inputs, sizes = _layer_inputs(decoder, index, pool.layers[index].tensors, kind)
            packages.append(_Package(f"layer-{kind}-{number}", Part(layer), inputs, sizes, weights_of(layer)))
    end = End(decoder)
    for kind in [kind for kind in ("one", "many") if kind in kinds]:
        rows = {0: Dim("rows", min=2)} if kind == "many" else None
        x_RD = torch.zeros(EXAMPLE[kind], decoder.config.hidden_size).to(decoder.embedding.weight)
        packages.append(_Package(f"end-{kind}", Part(end), (x_RD,), (rows,), weights_of(end)))
    return layers, packages


def _layer_inputs(
    decoder: Decoder, index: int, cache: tuple[Tensor, ...], kind: str
) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Example inputs of OneLayer, and which of their sizes are dynamic."""
    num_tokens = EXAMPLE[kind]
    device = cache[0].device
    positions_T = torch.arange(num_tokens, device=device)
    x_TD = torch.zeros(num_tokens, decoder.config.hidden_size).to(decoder.embedding.weight)
    angles = decoder.angles(positions_T)[index]
    keys_BL = torch.zeros((num_tokens if kind == "many" else 1, KEYS), dtype=torch.int64, device=device)
    tokens = None if kind == "one" else {0: Dim("tokens", min=2)}
    length, slots = Dim("length", min=2), {0: Dim("slots", min=2)}
    keys = {1: length} if tokens is None or kind == "chunk" else {**tokens, 1: length}
    inputs = (x_TD, angles, positions_T, positions_T.clone(), keys_BL, list(cache))
    return inputs, (tokens, None if angles is None else (tokens, tokens), tokens, tokens, keys, [slots] * len(cache))


@torch.no_grad()
def _compile(package: _Package, path: Path) -> None:
    weights_sizes = [None] * len(package.weights)
    sizes = {"inputs": package.dynamic_sizes, "weights": weights_sizes}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated", FutureWarning)  # torch's own
        program = export(package.part, (package.inputs, package.weights), dynamic_shapes=sizes)
        try:
            with inductor.patch(SETTINGS):
                aoti_compile_and_package(program, package_path=str(path))
        except RuntimeError as error:
            line = (str(error).splitlines() or [""])[0]
            raise ConfigError("program", "compiled", f"its compiler failed for {package.name}: {line}") from error


def _compiler() -> str:
    """Name and version of the compiler, for `tokenmill info` alone: running a package needs none."""
    asked = subprocess.run(  # noqa: S603  (the compiler that torch found)
        [cpp_builder.get_cpp_compiler(), "--version"], capture_output=True, text=True, check=True
    )
    return asked.stdout.partition("\n")[0]
